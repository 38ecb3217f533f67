"""`manage.py pg_dump ENDPOINT …`: dumps a database with the pg_dump of the computes' version."""

from controlplane.deployment.postgres_programs import PostgresProgram


class Command(PostgresProgram):
    help = "Runs pg_dump, of the version that computes have, at an endpoint."
    program = "pg_dump"
