"""A pytest plugin that sets a state directory for the tests before Django reads its settings.

The running service has its own. Code that runs inside the tests needs only a secret key.
"""

import atexit
import os
import shutil
import tempfile

os.environ["PERCH_STATE_DIR"] = tempfile.mkdtemp(prefix="perch-tests-")
atexit.register(shutil.rmtree, os.environ["PERCH_STATE_DIR"], ignore_errors=True)
# A bulk INSERT of a test takes longer than a caller of the API waits, if the machine is busy.
os.environ["PERCH_DATABASE_TIMEOUT"] = "60"


def pytest_sessionstart() -> None:
    # The settings have been read. Services that tests start have the default.
    del os.environ["PERCH_DATABASE_TIMEOUT"]
