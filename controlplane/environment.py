"""Reads settings from the environment, for `controlplane.settings`."""

import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from controlplane import durable

# On Linux sockaddr_un.sun_path holds 108 bytes, including the terminating NUL.
MAX_SOCKET_PATH_BYTES = 107
# libpq parameters for every connection to a database: seconds to connect, idle seconds before the
# first keepalive probe, and milliseconds after which unacknowledged data breaks the connection.
NETWORK_BOUNDS = {"connect_timeout": 3, "keepalives_idle": 30, "tcp_user_timeout": 30_000}


def envstr(name: str, default: str) -> str:
    return os.environ.get(name) or default


def envint(name: str, default: int) -> int:
    return int(envstr(name, str(default)))


def envbool(name: str, default: bool) -> bool:
    return envstr(name, str(default)).lower() in {"1", "true", "yes", "on"}


def envcount(name: str) -> int | None:
    """An integer, 0 or more; None if the variable is not set. Raises ValueError."""
    text = envstr(name, "")
    if text and not text.isdecimal():
        raise ValueError(f'{name} must be a number, 0 or more; got "{text}"')
    return int(text) if text else None


def envminutes(name: str) -> float | None:
    """A number of minutes of at least 1; None if the variable is not set. Raises ValueError."""
    text = envstr(name, "")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) < 1:
        raise ValueError(f'{name} must be a number of minutes, 1 or more; got "{text}"')
    return float(text)


def envbytes(name: str) -> int | None:
    """A number of bytes, optionally with a suffix K, M, G or T (powers of 1,024); None if the
    variable is not set.

    Raises ValueError.
    """
    text = envstr(name, "")
    found = re.fullmatch(r"([0-9]+)\s*([KMGT]?)(iB|B)?", text)
    if found is None:
        if text:
            raise ValueError(f'{name} must be a number of bytes, as "20G"; got "{text}"')
        return None
    return int(found[1]) << (10 * " KMGT".index(found[2] or " "))


def envnames(name: str, default: str) -> frozenset[str]:
    """Names, separated by commas."""
    parts = envstr(name, default).split(",")
    return frozenset(part.strip() for part in parts if part.strip())


def envmajors(name: str) -> dict[int, str]:
    """Directories by Postgres's major version, as "15=/usr/lib/postgresql/15/bin,17=…"; {} if the
    variable is not set.

    Raises ValueError.
    """
    found = {}
    for part in filter(None, (part.strip() for part in envstr(name, "").split(","))):
        major, _, directory = part.partition("=")
        if not (major.isdecimal() and directory.startswith("/")):
            raise ValueError(
                f'{name} must be as "15=/usr/lib/postgresql/15/bin", separated by commas; got '
                f'"{part}"'
            )
        found[int(major)] = directory
    return found


def envweights(name: str, defaults: Mapping[str, float]) -> dict[str, float]:
    """Weights by name, as "disk=2,cpu=0"; a name that is not given has its default.

    Raises ValueError for an unknown name, a weight that is not a number of at least 0, or if all
    weights are 0.
    """
    weights = dict(defaults)
    for part in filter(None, (part.strip() for part in envstr(name, "").split(","))):
        what, _, weight = part.partition("=")
        if what not in weights or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", weight):
            form = ",".join(f"{each}={weight:g}" for each, weight in defaults.items())
            raise ValueError(f'{name} must be as "{form}"; got "{part}"')
        weights[what] = float(weight)
    if not any(weights.values()):
        raise ValueError(f"{name} must have a weight of more than 0")
    return weights


def envnetworks(name: str) -> list[IPv4Network | IPv6Network]:
    """Networks, separated by commas, as "10.0.0.0/8,fd00::/8"; an empty list if the variable is not
    set.

    Raises ValueError.
    """
    return [ip_network(part.strip()) for part in envstr(name, "").split(",") if part.strip()]


class Unstored(str):
    """A random secret that is stored nowhere: nothing may be encrypted with it."""


def envsecret(name: str, path: Path, *, makes: bool) -> str:
    """The value of the variable `name`, else the content of the file that the variable
    `<name>_FILE` names, else the content of the file at `path`, which has mode 0600.

    If `makes` is true and the file does not exist, this function creates it. If the file cannot be
    read or created, it returns an `Unstored` one. So commands that need no secret, such as
    `--help`, work anywhere and create no file.
    """
    if value := os.environ.get(name):
        return value
    if given := os.environ.get(f"{name}_FILE"):
        path = Path(given)
    try:
        if makes and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # If two processes start at the same time, one creates the file and both read the same
            # secret. The secret is on the disk before anything is encrypted with it.
            durable.write_new(path, secrets.token_urlsafe(48), 0o600)
        return path.read_text()
    except OSError:
        return Unstored(secrets.token_urlsafe(48))


def envsecrets(name: str, path: Path) -> list[str]:
    """The secrets of the variable `name`, separated by commas, else those in the file that the
    variable `<name>_FILE` names or in the file at `path`, one a line; none if it cannot be read.

    Each secret is also given with a line break at its end, because `envsecret` takes a file as it
    is, and a file may end in one.
    """
    text = os.environ.get(name, "").replace(",", "\n")
    if not text:
        with suppress(OSError):
            text = Path(os.environ.get(f"{name}_FILE") or path).read_text()
    found = (line.strip() for line in text.split("\n"))
    return list(dict.fromkeys(one + end for one in found if one for end in ("", "\n")))


def default_state_dir(*, checkout: Path | None) -> Path:
    """The default state directory. `checkout` is None for an installed wheel.

    It is never among the installed packages, because an upgrade replaces these.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/perch")
    if checkout is not None:
        return checkout / "var"
    # The XDG specification requires that relative paths are ignored.
    wanted = Path(envstr("XDG_STATE_HOME", ""))
    return (wanted if wanted.is_absolute() else Path.home() / ".local" / "state") / "perch"


def program_of_checkout() -> str:
    """How the program of a checkout's environment is typed in a shell of this directory."""
    program = Path(sys.executable).with_name("perch")
    if not program.exists():
        return "python manage.py"
    if shutil.which("perch") == str(program):
        return "perch"
    with suppress(OSError, ValueError):
        return str(program.relative_to(Path.cwd()))
    return str(program)


def private_directory(state_dir: Path, name: str, *, longest_child: int) -> Path:
    """`state_dir/name`, or, if the paths of sockets in it would be too long, a short path in the
    temporary directory that is derived from it.

    `longest_child` is the length in bytes of the longest path below the directory.
    """
    path = state_dir / name
    if len(os.fsencode(path)) + 1 + longest_child <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    # The owner's, because processes of one service may run under several accounts.
    owner = state_dir.stat().st_uid if state_dir.exists() else os.geteuid()
    return Path(tempfile.gettempdir()) / f"perch-{owner}-{digest}"


def postgres_database(
    url: str,
    *,
    application_name: str,
    pool_size: int,
    pool_timeout: float,
    statement_timeout: float,
) -> dict[str, Any]:
    """Convert a libpq URL or key-value string to an entry of Django's DATABASES.

    `application_name` names its connections for the server, unless the URL has another name.
    `pool_timeout` is how many seconds to wait for a connection of the pool. `statement_timeout` is
    how many seconds to wait for the answer to a statement; 0 means without a limit.
    """
    options: dict[str, Any] = {
        "application_name": application_name,
        **NETWORK_BOUNDS,
        **conninfo_to_dict(url),
    }
    return {
        "ENGINE": "controlplane.database",
        "NAME": options.pop("dbname", "perch"),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": options.pop("port", ""),
        "CONN_HEALTH_CHECKS": True,
        "STATEMENT_TIMEOUT": statement_timeout,
        "OPTIONS": {
            **options,
            # Let `DatabaseWrapper.read` prepare its statements; None would disable that. Django's
            # own statements are not prepared.
            "prepare_threshold": 0,
            "pool": {
                "min_size": 1,
                "max_size": pool_size,
                "timeout": pool_timeout,
                # After 3 seconds of failures the pool stops its backoff. Then the next request
                # connects at once, instead of waiting for a pause that grows.
                "reconnect_timeout": 3,
            },
        },
    }
