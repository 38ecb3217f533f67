"""Names that a role or a database may not have."""

from controlplane.models.names import is_reserved_database, is_reserved_role
from controlplane.services.errors import Unprocessable

# HTTP clients remove these path segments from URLs.
STEPS = (".", "..")


def check_role_name(name: str, *, field: str = "name") -> None:
    """Raises Unprocessable for names that are reserved for Postgres or the platform, or that cannot
    be part of a URL's path."""
    _check_addressable("role", name, field)
    if is_reserved_role(name):
        raise Unprocessable(f'the role name "{name}" is reserved', fields=[field])


def check_database_name(name: str, *, field: str = "name") -> None:
    """Raises Unprocessable for names that are reserved for Postgres or the pooler, or that cannot
    be part of a URL's path."""
    _check_addressable("database", name, field)
    if is_reserved_database(name):
        raise Unprocessable(f'the database name "{name}" is reserved', fields=[field])


def _check_addressable(kind: str, name: str, field: str) -> None:
    """Raises Unprocessable for names that cannot be part of a URL's path, by which the API
    addresses roles and databases."""
    if "/" in name or name in STEPS:
        raise Unprocessable(
            f'the {kind} name "{name}" cannot be part of a URL: it must not contain a slash, '
            'or be "." or ".."',
            fields=[field],
        )
