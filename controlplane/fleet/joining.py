"""What `manage.py hosts add` gives to a new machine, and what `hosts join` makes of it there."""

import json
import os
import shlex
from pathlib import Path

import requests
from django.conf import settings

from controlplane import durable
from controlplane.compute.data.state_directory import prepare_state_directory
from controlplane.fleet.invitations import decrypted, name_in

# Variables that all hosts of a service must agree on. Others are of the machine, or in files.
SHARED = (
    *("DATABASE_URL", "PERCH_OPERATORS", "PERCH_PLACEMENT", "PERCH_RECOVERY_HOURS"),
    *("PERCH_HISTORY_STORE", "PERCH_HISTORY_KEY"),
)
# The file with the variables, in the format of systemd's EnvironmentFile and of a shell.
ENVIRONMENT = "environment"
AUTHORITY = ("tls/authority.pem", "tls/authority.key")
CERTIFICATE, CERTIFICATE_KEY = "tls/certificate.pem", "tls/certificate.key"
ANSWER_TIMEOUT = 30.0  # seconds


class JoinRefused(Exception):
    """The machine cannot join; the message says why."""


def content_for(*, name: str, address: str, region: str) -> bytes:
    """The files and variables for a new host. Raises JoinRefused, OSError."""
    if "DATABASE_URL" not in os.environ:
        raise JoinRefused(
            "this service keeps its metadata in a Postgres of its own, which no other machine can "
            "reach: move it to one that DATABASE_URL names (docs/how-to/hosts.md)"
        )
    variables = {one: os.environ[one] for one in SHARED if os.environ.get(one)}
    variables |= {
        "PERCH_REGION": region,
        "PERCH_REGION_HOST": settings.REGION_HOST,
        "PERCH_REGION_PORT": str(settings.REGION_PORT),
        "PERCH_HOST_NAME": name,
        "PERCH_HOST_ADDRESS": address,
    }
    files = {"secret-key": settings.SECRET_KEY}
    if former := settings.SECRET_KEY_FALLBACKS:
        files["secret-key-fallbacks"] = "\n".join(dict.fromkeys(one.strip() for one in former))
    if settings.TLS_CERTIFICATE:
        files[CERTIFICATE] = Path(settings.TLS_CERTIFICATE).read_text()
        files[CERTIFICATE_KEY] = Path(settings.TLS_KEY).read_text()
    else:
        files |= {one: (settings.STATE_DIR / one).read_text() for one in AUTHORITY}
    return json.dumps({"variables": variables, "files": files}).encode()


def join(token: str, api_url: str) -> str:
    """Make the state directory of the settings one of the host that the token is for. Returns the
    host's name. Raises JoinRefused, services.errors.Invalid,
    compute.state_directory.StateDirectoryUnusable, OSError."""
    state: Path = settings.STATE_DIR
    if state.exists() and any(state.iterdir()):
        raise JoinRefused(f"{state} is not empty: name a new directory with --state-dir")
    try:
        answer = requests.post(
            f"{api_url.rstrip('/')}/hosts/join",
            json={"invitation": name_in(token)},
            timeout=ANSWER_TIMEOUT,
        )
    except requests.RequestException as error:
        raise JoinRefused(f"{api_url} does not answer: {error}") from error
    if not answer.ok:
        raise JoinRefused(f"{api_url} refuses the token: {_message(answer)}")
    given = json.loads(decrypted(token, answer.json()["content"]))
    prepare_state_directory()
    (state / "tls").mkdir(mode=0o700)
    for name, content in given["files"].items():
        durable.write_new(state / name, content, 0o600)
    variables: dict[str, str] = given["variables"]
    if CERTIFICATE in given["files"]:
        variables["PERCH_TLS_CERTIFICATE"] = str(state / CERTIFICATE)
        variables["PERCH_TLS_KEY"] = str(state / CERTIFICATE_KEY)
    lines = "".join(f"{one}={shlex.quote(value)}\n" for one, value in variables.items())
    durable.write_new(state / ENVIRONMENT, lines, 0o600)
    return variables["PERCH_HOST_NAME"]


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
