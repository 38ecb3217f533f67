"""`manage.py psql ENDPOINT …`: runs psql on a database of the endpoint's branch."""

from controlplane.deployment.postgres_programs import PostgresProgram


class Command(PostgresProgram):
    help = "Runs psql, of the version that computes have, at an endpoint or its pooler."
    program = "psql"
    can_be_pooled = True
