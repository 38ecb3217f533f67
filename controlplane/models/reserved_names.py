"""Names of roles and databases that Postgres or the platform keeps for itself: nobody makes one by
the API, and what SQL makes of such a name is no business of the platform's, nor lets anybody in.
"""

_ROLES = ("pg_", "perch_")
# PgBouncer keeps one of each for its own console, which a role of that name would get into.
POOLERS_OWN = "pgbouncer"
_DATABASES = ("postgres", "template0", "template1", POOLERS_OWN)


def is_reserved_role(name: str) -> bool:
    return name.startswith(_ROLES) or name in ("public", "none", POOLERS_OWN)


def is_reserved_database(name: str) -> bool:
    return name in _DATABASES
