"""`manage.py pg_dump ENDPOINT …`: dumps a database by the pg_dump of its version."""

from controlplane.management.postgres_programs import PostgresProgram


class Command(PostgresProgram):
    help = "Runs pg_dump, of the version that computes have, at an endpoint."
    program = "pg_dump"
