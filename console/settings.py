"""The console's settings. It stores no data of its own: all it shows is the management API's."""

import os
import tempfile
from ipaddress import ip_network
from pathlib import Path

from csp.constants import NONE, SELF
from django.contrib.messages import constants as message_levels
from django.core.exceptions import ImproperlyConfigured

from console import logs


def env(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def envfloat(name: str, default: float) -> float:
    return float(env(name, str(default)))


def envlist(name: str, default: str = "") -> list[str]:
    return [item.strip() for item in env(name, default).split(",") if item.strip()]


def envnamed(name: str) -> dict[str, str]:
    """Read addresses by name, as "staging=https://…, production=https://…". Raises
    ImproperlyConfigured if one is not of that form."""
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
    """Read a variable or, if it is not set, the file that `<name>_FILE` names."""
    path = env(f"{name}_FILE")
    return env(name) or (Path(path).read_text().strip() if path else "")


def envsecrets(name: str) -> list[str]:
    """Read secrets from a variable, separated by commas, or, if it is not set, from the file that
    `<name>_FILE` names, one a line. A file that is missing holds none."""
    path = Path(env(f"{name}_FILE"))
    text = env(name).replace(",", "\n") or (path.read_text() if path.is_file() else "")
    return [line.strip() for line in text.split("\n") if line.strip()]


ROOT = Path(__file__).resolve().parent.parent
IS_INSTALLED = (ROOT / "perch" / "manage.py").is_file()
# The directory that holds `templates` and `static`: the checkout, or the wheel's package `perch`.
BASE_DIR = ROOT / "perch" if IS_INSTALLED else ROOT

DEBUG = env("PERCH_DEBUG").lower() in ("1", "true", "yes", "on")
# Signs forms and encrypts the cookie that holds the user's API key. console.wsgi requires it.
SECRET_KEY = envsecret("PERCH_SECRET_KEY") or ("only-for-debugging" if DEBUG else "")
# Keys that were SECRET_KEY before: sessions and forms that were made with them go on.
SECRET_KEY_FALLBACKS = envsecrets("PERCH_SECRET_KEY_FALLBACKS")
# HOST is the address that `up` and the Procfile listen on.
ALLOWED_HOSTS = envlist("PERCH_ALLOWED_HOSTS", ".localhost,127.0.0.1,[::1]," + env("HOST"))
CSRF_TRUSTED_ORIGINS = envlist("PERCH_TRUSTED_ORIGINS")

# Networks of the reverse proxies in front of the console.
TRUSTED_PROXIES = [ip_network(one) for one in envlist("PERCH_TRUSTED_PROXIES")]

MANAGEMENT_API_URL = env("MANAGEMENT_API_URL", "http://127.0.0.1:8001/api/v2").rstrip("/")
# The other servers that users may choose when they sign in: their names and addresses.
OTHER_SERVERS = envnamed("PERCH_CONSOLE_SERVERS")
# Seconds for an answer of the API, from sending the request to the end of the answer.
MANAGEMENT_API_TIMEOUT = envfloat("MANAGEMENT_API_TIMEOUT", 15)

# Holds the sign-ins that have ended. All processes of one console share it, and no others.
STATE_DIR = env(
    "PERCH_CONSOLE_STATE_DIR", str(Path(tempfile.gettempdir()) / f"perch-console-{os.geteuid()}")
)

# Bytes of a form. A longer one is not read (received_forms).
DATA_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
# The form of a row has up to three fields for each column, and a table up to 1,600 columns.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5_000
# Bytes of the form that imports a file into a table.
LONGEST_IMPORT = 9 << 20

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
    "console.middleware.MemoryMiddleware",
    "console.middleware.HealthMiddleware",
    "console.middleware.LeanMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "console.middleware.CarefulResponseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "console.received_forms.ReceivedFormMiddleware",
    "console.middleware.FormsMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.middleware.ZoneMiddleware",
    "console.middleware.ProblemMiddleware",
    "console.middleware.SignInMiddleware",
    "console.middleware.MethodMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "builtins": [
                "console.templatetags.console_tags",
                "console.templatetags.reasons",
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.messages.context_processors.messages",
                "console.sign_in.sessions.account",
                "console.account.preferences.preferences",
                "console.pages.service_notice.service",
            ],
        },
    },
]

FORM_RENDERER = "console.forms.widgets.WidgetRenderer"

SESSION_ENGINE = "console.sign_in.sessions"
SESSION_COOKIE_NAME = "perch_session"
# Seconds without a request after which a session ends.
SESSION_COOKIE_AGE = int(envfloat("PERCH_SESSION_IDLE_HOURS", 24) * 3600)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "perch_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "console.pages.problems.csrf_failure"
MESSAGE_STORAGE = "console.pages.problems.NoticeStorage"
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
# Pages load what console.bundles makes of these files. Each file is also served by itself, from
# where it is, so that `collectstatic` is not needed.
WHITENOISE_USE_FINDERS = True

LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = logs.configuration("console")
