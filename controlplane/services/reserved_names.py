"""Names that a role or a database may not have."""

from controlplane.models.reserved_names import is_reserved_database, is_reserved_role
from controlplane.services.errors import Unprocessable

# What HTTP clients take for steps to another place.
STEPS = (".", "..")


def check_role_name(name: str) -> None:
    """Raises Unprocessable for names that Postgres or the platform keeps for itself."""
    _check_addressable("role", name)
    if is_reserved_role(name):
        raise Unprocessable(f'the role name "{name}" is reserved')


def check_database_name(name: str) -> None:
    """Raises Unprocessable for the databases that every cluster has."""
    _check_addressable("database", name)
    if is_reserved_database(name):
        raise Unprocessable(f'the database name "{name}" is reserved')


def _check_addressable(kind: str, name: str) -> None:
    """The name is the key in the path of the API: one that cannot stand there is of no use."""
    if "/" in name or name in STEPS:
        raise Unprocessable(
            f'the {kind} name "{name}" cannot stand in a path: it may not hold a slash, '
            'nor be "." or ".."'
        )
