"""What the commands about a service have in common."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, OperationalError


class ServiceCommand(BaseCommand):
    """A command about the service that a state directory belongs to. Of an exception of its
    `refusals` it prints the message, and fails."""

    refusals: tuple[type[Exception], ...] = ()
    # These are about the API's code, which most commands do not load.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except self.refusals as error:
            raise CommandError(str(error)) from error
        except OperationalError:
            raise  # manage.py says what to do
        except Error as error:
            raise CommandError(f"Perch's own database refuses this: {error}") from error

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
