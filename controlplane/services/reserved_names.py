"""Names of roles and databases that Postgres or the platform keeps for itself."""

from controlplane.services.errors import Unprocessable

RESERVED_ROLES = ("pg_", "perch_")
RESERVED_DATABASES = ("postgres", "template0", "template1")


def check_role_name(name: str) -> None:
    """Raises Unprocessable for names that Postgres or the platform keeps for itself."""
    if name.startswith(RESERVED_ROLES) or name in ("public", "none"):
        raise Unprocessable(f'the role name "{name}" is reserved')


def check_database_name(name: str) -> None:
    """Raises Unprocessable for the databases that every cluster has."""
    if name in RESERVED_DATABASES:
        raise Unprocessable(f'the database name "{name}" is reserved')
