"""The PgBouncer settings that an endpoint's owner may give its pooler, and their bounds.

An allow-list of whole numbers: settings that are not named here stay the platform's. A running
pooler takes in all of them by a reload, so a change drops no connection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controlplane.compute.settings.configuration import max_connections

DAY_SECONDS = 86_400  # seconds
MAX_CLIENTS = 10_000

Version = tuple[int, int]


@dataclass(frozen=True)
class Bounds:
    """The least and the most allowed value; `most` depends on the endpoint's compute units."""

    least: int
    most: Callable[[float], int]
    # The first version of PgBouncer that has the setting.
    since: Version = (0, 0)


def _upto(most: int) -> Callable[[float], int]:
    return lambda cu: most


# Since this version, PgBouncer keeps a client's prepared statements when its server changes.
KEEPS_PREPARED_STATEMENTS: Version = (1, 21)
# Timeouts are in seconds; 0 disables one, except `server_lifetime`.
ALLOWED: Mapping[str, Bounds] = {
    "client_idle_timeout": Bounds(0, _upto(DAY_SECONDS)),
    # For each pair of database and role.
    "default_pool_size": Bounds(1, max_connections),
    "idle_transaction_timeout": Bounds(0, _upto(DAY_SECONDS)),
    "max_client_conn": Bounds(1, _upto(MAX_CLIENTS)),
    # With 0, PgBouncer would keep none, and a client could execute another one's statement.
    "max_prepared_statements": Bounds(1, _upto(1000), since=KEEPS_PREPARED_STATEMENTS),
    "query_timeout": Bounds(0, _upto(DAY_SECONDS)),
    "query_wait_timeout": Bounds(0, _upto(DAY_SECONDS)),
    "reserve_pool_size": Bounds(0, max_connections),
    "reserve_pool_timeout": Bounds(0, _upto(3600)),
    "server_idle_timeout": Bounds(0, _upto(DAY_SECONDS)),
    "server_lifetime": Bounds(60, _upto(DAY_SECONDS)),
    # With 0, what a client leaves in a session is there for other clients of its role.
    "server_reset_query_always": Bounds(0, _upto(1)),
}


def pooler_complaint(
    name: str, value: str, *, max_cu: float, version: Version | None = None
) -> str | None:
    """Why the setting is refused on an endpoint of up to `max_cu` compute units; None if it is not.
    `version` is that of the PgBouncer in use; None if it is unknown."""
    bounds = ALLOWED.get(name)
    if bounds is None:
        return f"cannot be set on this server; these can: {', '.join(ALLOWED)}"
    if version is not None and version < bounds.since:
        return f"needs PgBouncer {_written(bounds.since)}, but the host has {_written(version)}"
    most = bounds.most(max_cu)
    if (
        value.isascii()
        and value.isdigit()
        and len(value) < 10
        and (bounds.least <= int(value) <= most)
    ):
        return None
    return f'must be a whole number from {bounds.least} to {most}, got "{value}"'


def pooler_exceeds_size(name: str, value: str, *, max_cu: float) -> str | None:
    """Why a setting that was accepted before is refused on an endpoint of another size, or None."""
    bounds = ALLOWED.get(name)
    if bounds is None or bounds.most is not max_connections:
        return None
    return pooler_complaint(name, value, max_cu=max_cu)


def version_of(text: str) -> Version | None:
    """ "1.25" as (1, 25); None for an empty text."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if text else None


def keeps_prepared_statements(version: str) -> bool:
    """True if a PgBouncer of this version, for example "1.25", does; "" stands for none."""
    return (version_of(version) or (0, 0)) >= KEEPS_PREPARED_STATEMENTS


def _written(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
