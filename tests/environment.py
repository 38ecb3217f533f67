"""A pytest plugin: a state directory that belongs to the tests, before Django reads its settings.

The running service has one of its own; what runs inside the tests needs none but a secret key.
"""

import atexit
import os
import shutil
import tempfile

os.environ["PERCH_STATE_DIR"] = tempfile.mkdtemp(prefix="perch-tests-")
atexit.register(shutil.rmtree, os.environ["PERCH_STATE_DIR"], ignore_errors=True)
