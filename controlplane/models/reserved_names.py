"""Names of roles and databases that are reserved for Postgres or the platform. The API creates none
with such a name. The platform ignores those that SQL creates, and no client can log in with them.
"""

_ROLES = ("pg_", "perch_")
# PgBouncer's own console is a database with this name, and a role with this name could log in to
# it.
POOLERS_OWN = "pgbouncer"
_DATABASES = ("postgres", "template0", "template1", POOLERS_OWN)


def is_reserved_role(name: str) -> bool:
    return name.startswith(_ROLES) or name in ("public", "none", POOLERS_OWN)


def is_reserved_database(name: str) -> bool:
    return name in _DATABASES
