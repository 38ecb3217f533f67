"""Names that a role or a database may not have."""

from typing import Literal

from controlplane.models.names import is_reserved_database, is_reserved_role
from controlplane.services.errors import Unprocessable

# HTTP clients remove these path segments from URLs.
STEPS = (".", "..")


def check_name(kind: Literal["role", "database"], name: str, *, field: str = "name") -> None:
    """Raises Unprocessable for names that cannot be part of a URL's path, by which the API
    addresses roles and databases, and for those that are reserved for Postgres or the platform."""
    if "/" in name or name in STEPS:
        raise Unprocessable(
            f'the {kind} name "{name}" cannot be part of a URL: it must not contain a slash, '
            'or be "." or ".."',
            fields=[field],
        )
    if is_reserved_role(name) if kind == "role" else is_reserved_database(name):
        raise Unprocessable(f'the {kind} name "{name}" is reserved', fields=[field])
