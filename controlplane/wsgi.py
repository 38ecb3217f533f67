"""The API as a WSGI application: `gunicorn controlplane.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application
from gunicorn.errors import AppImportError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

application = get_wsgi_application()

from controlplane.database.version import OtherVersion, refuse_other_version  # noqa: E402

try:
    # If the database does not answer, start anyway: the API reports that until it answers again. It
    # is assumed to be of the same version then.
    refuse_other_version(may_be_away=True)
except OtherVersion as error:
    # For its own errors gunicorn prints only the message, and exits.
    raise AppImportError(str(error)) from error
