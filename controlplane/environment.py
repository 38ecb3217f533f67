"""Reads settings from the environment. Used by `controlplane.settings` alone."""

import hashlib
import os
import re
import secrets
import tempfile
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from controlplane import durable
from controlplane.database.base import BoundedConnection

# sockaddr_un.sun_path holds 108 bytes with its closing NUL, on Linux.
LONGEST_SOCKET_PATH = 107
# libpq's, for every connection to a database: seconds to connect, and until a silent network
# (the last in milliseconds) counts as a broken connection.
NETWORK_BOUNDS = {"connect_timeout": 3, "keepalives_idle": 30, "tcp_user_timeout": 30_000}


def envstr(name: str, default: str) -> str:
    return os.environ.get(name) or default


def envint(name: str, default: int) -> int:
    return int(envstr(name, str(default)))


def envbool(name: str, default: bool) -> bool:
    return envstr(name, str(default)).lower() in {"1", "true", "yes", "on"}


def envcount(name: str) -> int | None:
    """A number, 0 or more; None where unset. Raises ValueError."""
    text = envstr(name, "")
    if text and not text.isdecimal():
        raise ValueError(f'{name} must be a number, 0 or more; got "{text}"')
    return int(text) if text else None


def envbytes(name: str) -> int | None:
    """A number of bytes, which may end in one of K, M, G, T (of 1,024 each); None where unset.

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


def envnetworks(name: str) -> list[IPv4Network | IPv6Network]:
    """Networks, separated by commas, as "10.0.0.0/8,fd00::/8"; none where unset.

    Raises ValueError.
    """
    return [ip_network(part.strip()) for part in envstr(name, "").split(",") if part.strip()]


def envsecret(name: str, path: Path, *, makes: bool) -> str:
    """The variable `name`, else what the file that `<name>_FILE` names holds, else what the
    0600 file at `path` holds.

    A process that `makes` it makes the file where there is none. One that does not, or that may
    not or cannot read or make it, gets a passing secret: commands that need none, `--help` among
    them, work anywhere and leave nothing behind.
    """
    if value := os.environ.get(name):
        return value
    if given := os.environ.get(f"{name}_FILE"):
        path = Path(given)
    try:
        if makes and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of two processes that start together, one makes it and both read the same. It is on
            # the disk before anything is encrypted with it.
            durable.write_new(path, secrets.token_urlsafe(48), 0o600)
        return path.read_text()
    except OSError:
        return secrets.token_urlsafe(48)


def default_state_dir(*, checkout: Path | None) -> Path:
    """Where state is kept unless told otherwise; `checkout` is None for an installed wheel.

    Never among the installed packages, which the next version replaces.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/perch")
    if checkout is not None:
        return checkout / "var"
    # The XDG specification has relative paths ignored.
    wanted = Path(envstr("XDG_STATE_HOME", ""))
    return (wanted if wanted.is_absolute() else Path.home() / ".local" / "state") / "perch"


def private_directory(state_dir: Path, name: str, *, longest_child: int) -> Path:
    """`state_dir/name`, or a short path derived from it where sockets would not fit.

    `longest_child` is the length in bytes of the longest path below it.
    """
    path = state_dir / name
    if len(os.fsencode(path)) + 1 + longest_child <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"perch-{os.geteuid()}-{digest}"


def postgres_database(
    url: str, *, pool_size: int, pool_timeout: float, statement_timeout: float
) -> dict[str, Any]:
    """Django's description of the database that the libpq URL or key-value string names.

    `pool_timeout` is how many seconds to wait for a connection of the pool, and
    `statement_timeout` for the answer to a statement; 0 waits without a bound.
    """
    options: dict[str, Any] = {**NETWORK_BOUNDS, **conninfo_to_dict(url)}
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
            # Of the statements that ask for it alone (`DatabaseWrapper.read`), not of Django's.
            "prepare_threshold": 0,
            "pool": {
                "connection_class": BoundedConnection,
                "min_size": 1,
                "max_size": pool_size,
                "timeout": pool_timeout,
                # After a few failures the next request tries at once, no growing pause first.
                "reconnect_timeout": 3,
            },
        },
    }
