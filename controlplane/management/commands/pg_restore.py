"""`manage.py pg_restore ENDPOINT …`: restores an archive of pg_dump into the endpoint's branch."""

from collections.abc import Sequence

from controlplane.deployment.postgres_programs import PostgresProgram, Way

# Options with which it restores elsewhere, writes a script, or lists the archive's content.
ELSEWHERE = ("-d", "--dbname", "-f", "--file", "-l", "--list", "-V", "--version", "-?", "--help")


class Command(PostgresProgram):
    help = "Runs pg_restore, of the version that computes have, into an endpoint's database."
    program = "pg_restore"

    def extra_arguments(self, way: Way, arguments: Sequence[str]) -> Sequence[str]:
        """Name the database; without one, pg_restore would print the archive as SQL."""
        if any(argument.startswith(ELSEWHERE) for argument in arguments):
            return ()
        return (f"--dbname={way.database}",)
