"""`manage.py rotate_secret_key`: encrypts what is stored with the present PERCH_SECRET_KEY."""

from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.services.key_rotation import RotationRefused, rotate


class Command(BaseCommand):
    help = (
        "Encrypts everything that is stored with the present PERCH_SECRET_KEY, while the service "
        "runs. Values are read with PERCH_SECRET_KEY_FALLBACKS too."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            refuse_other_version()
            refuse_other_key()
            rotate(self._say)
        except (OtherVersion, OtherSecretKey, RotationRefused) as error:
            raise CommandError(str(error)) from error
        except psycopg.OperationalError as error:
            raise CommandError(f"the database does not answer: {error}") from error

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
