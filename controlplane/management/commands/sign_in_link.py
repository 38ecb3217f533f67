"""`manage.py sign_in_link`: prints a link that signs in once at this machine's console."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.deployment.greeting import console_address, make_sign_in_link
from controlplane.deployment.service_command import ServiceCommand


class Command(ServiceCommand):
    help = "Prints a link that signs in at the console, once and within 10 minutes, as `local`."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--console-url",
            metavar="URL",
            help="the console's address for browsers, by default the one that `up` listens on",
        )

    def handle(self, *args: Any, console_url: str | None, **options: Any) -> None:
        try:
            link = make_sign_in_link(console_url or console_address())
        except FileNotFoundError as error:
            raise CommandError(
                f"`{settings.PROGRAM} up`, which makes the account of such links, has never run "
                f"with the state directory {settings.STATE_DIR} (--state-dir). If the processes "
                "run otherwise, as under systemd, sign in with an API key: "
                f"`{settings.PROGRAM} create_api_key` prints a new one"
            ) from error
        except OSError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(link)
