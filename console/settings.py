"""Settings of the console. It owns no data: everything it shows comes from the management API."""

import os
import tempfile
from pathlib import Path

from csp.constants import NONE, SELF
from django.contrib.messages import constants as message_levels
from django.core.exceptions import ImproperlyConfigured

from console import logs


def env(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def envbool(name: str, *, default: bool) -> bool:
    return env(name, str(default)).lower() in ("1", "true", "yes", "on")


def envfloat(name: str, default: float) -> float:
    return float(env(name, str(default)))


def envlist(name: str, default: str = "") -> list[str]:
    return [item.strip() for item in env(name, default).split(",") if item.strip()]


def envnamed(name: str) -> dict[str, str]:
    """As "staging=https://…, production=https://…". Raises ImproperlyConfigured."""
    found: dict[str, str] = {}
    for item in envlist(name):
        key, is_given, value = (part.strip() for part in item.partition("="))
        if not (key and is_given and value.startswith(("http://", "https://"))) or key in found:
            raise ImproperlyConfigured(
                f"{name}: “{item}” must be a name of its own, “=”, and an address as "
                "https://api.example.com/api/v2"
            )
        found[key] = value.rstrip("/")
    return found


def envsecret(name: str) -> str:
    """The variable, or what the file that `<name>_FILE` names holds."""
    path = env(f"{name}_FILE")
    return env(name) or (Path(path).read_text().strip() if path else "")


ROOT = Path(__file__).resolve().parent.parent
IS_INSTALLED = (ROOT / "perch" / "manage.py").is_file()
# The folder of templates and static: the checkout's root, or the package `perch` of the wheel.
BASE_DIR = ROOT / "perch" if IS_INSTALLED else ROOT

DEBUG = envbool("PERCH_DEBUG", default=False)
# Signs forms and encrypts the cookie that holds the user's API key; console.wsgi insists on it.
SECRET_KEY = envsecret("PERCH_SECRET_KEY") or ("only-for-debugging" if DEBUG else "")
# HOST is the address that `up` and the Procfile listen on.
ALLOWED_HOSTS = envlist("PERCH_ALLOWED_HOSTS", ".localhost,127.0.0.1,[::1]," + env("HOST"))
CSRF_TRUSTED_ORIGINS = envlist("PERCH_TRUSTED_ORIGINS")

MANAGEMENT_API_URL = env("MANAGEMENT_API_URL", "http://127.0.0.1:8001/api/v2").rstrip("/")
# Further servers to choose from when signing in: names and addresses. There are no others.
OTHER_SERVERS = envnamed("PERCH_CONSOLE_SERVERS")
# Seconds to wait for the API's whole answer.
MANAGEMENT_API_TIMEOUT = envfloat("MANAGEMENT_API_TIMEOUT", 15)

# For the sessions that have ended; shared by the processes of one console, private to them.
STATE_DIR = env(
    "PERCH_CONSOLE_STATE_DIR", str(Path(tempfile.gettempdir()) / f"perch-console-{os.geteuid()}")
)

# Of a form, in bytes. None that is longer is read (middleware.ProblemMiddleware).
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20

ROOT_URLCONF = "console.urls"
WSGI_APPLICATION = "console.wsgi.application"
INSTALLED_APPS = [
    "console",
    "csp",
    "django_htmx",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "console.middleware.RequestLogMiddleware",
    "console.middleware.LeanMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "console.middleware.CarefulResponseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "console.middleware.FormsMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.middleware.ZoneMiddleware",
    "console.middleware.ProblemMiddleware",
    "console.middleware.SignInMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "builtins": ["console.templatetags.console_tags"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.messages.context_processors.messages",
                "console.sessions.account",
                "console.preferences.preferences",
                "console.service_words.service",
            ],
        },
    },
]

SESSION_ENGINE = "console.sessions"
SESSION_COOKIE_NAME = "perch_session"
# Seconds without a page being asked for after which a session is over.
SESSION_COOKIE_AGE = int(envfloat("PERCH_SESSION_IDLE_HOURS", 24) * 3600)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "perch_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "console.views.problems.csrf_failure"
MESSAGE_STORAGE = "console.notices.NoticeStorage"
MESSAGE_TAGS = {message_levels.ERROR: "failure"}

SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        # Pico draws its checkmarks and chevrons as data: images.
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}

APPEND_SLASH = False
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Pages load what console.bundles makes of these files. Each is there by itself too, straight from
# where it lies: no collectstatic step to forget.
WHITENOISE_USE_FINDERS = True

LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = logs.configuration("console")
