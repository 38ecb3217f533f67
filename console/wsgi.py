"""The console's WSGI door: `gunicorn console.wsgi`."""

import os

from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

from console import ended_sessions, settings

if not settings.SECRET_KEY:
    raise ImproperlyConfigured(
        "PERCH_SECRET_KEY is not set. The console encrypts its session cookie with it: "
        "set it to a long random string that stays the same over restarts."
    )

# Set, not defaulted: a parent process may carry the control plane's settings in its environment.
os.environ["DJANGO_SETTINGS_MODULE"] = "console.settings"

application = get_wsgi_application()

# It reads the settings that are in force by now.
from console import bundles  # noqa: E402

# Packed now, not while the first browser waits.
for kind in bundles.KINDS:
    bundles.bundle(kind)

# What is wrong with it is told now, not to whoever signs out first.
ended_sessions.prepare()
