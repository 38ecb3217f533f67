"""The console's WSGI entry point: `gunicorn console.wsgi`."""

import os

from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

from console import settings
from console.sign_in import ended_sessions

if not settings.SECRET_KEY:
    raise ImproperlyConfigured(
        "PERCH_SECRET_KEY is not set. The console encrypts its session cookie with it: "
        "set it to a long random string that stays the same over restarts."
    )

# Set, not defaulted: a parent process may carry the control plane's settings in its environment.
os.environ["DJANGO_SETTINGS_MODULE"] = "console.settings"

application = get_wsgi_application()

# Check the state directory now, and not at the first sign-out.
ended_sessions.prepare()
