"""The API as a WSGI application: `gunicorn controlplane.wsgi`."""

import logging
import os
import threading
import time

import psycopg
from django.core.wsgi import get_wsgi_application
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

application = get_wsgi_application()

from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key  # noqa: E402
from controlplane.database.version import OtherVersion, refuse_other_version  # noqa: E402

RETRY_INTERVAL = 1.0  # seconds

log = logging.getLogger(__name__)


def check_database() -> None:
    """Raises OtherVersion, OtherSecretKey, psycopg.OperationalError."""
    refuse_other_version(beside=True)
    refuse_other_key()


def check_once_it_answers() -> None:
    """End this process, and thereby gunicorn, if the database turns out to be unfit for it."""
    while True:
        time.sleep(RETRY_INTERVAL)
        try:
            check_database()
        except psycopg.OperationalError:
            continue
        except (OtherVersion, OtherSecretKey) as error:
            log.critical("cannot serve", extra={"error": str(error)})
            os._exit(Arbiter.APP_LOAD_ERROR)
        return


try:
    check_database()
except psycopg.OperationalError:
    # Start anyway: the API reports that the database does not answer until it answers again.
    threading.Thread(target=check_once_it_answers, daemon=True).start()
except (OtherVersion, OtherSecretKey) as error:
    # For its own errors gunicorn prints only the message, and exits.
    raise AppImportError(str(error)) from error
