"""The API for a WSGI server: `gunicorn controlplane.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application
from gunicorn.errors import AppImportError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

application = get_wsgi_application()

from controlplane.database.version import OtherVersion, refuse_other_version  # noqa: E402

try:
    # While the database is away the API says so; once it is back it is the one of before.
    refuse_other_version(may_be_away=True)
except OtherVersion as error:
    # Of its own errors gunicorn prints the words alone, and ends.
    raise AppImportError(str(error)) from error
