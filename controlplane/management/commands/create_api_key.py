"""`manage.py create_api_key --account NAME --name KEYNAME`: makes an API key and prints it."""

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from controlplane.deployment.service_command import ServiceCommand
from controlplane.models import Account, Plan
from controlplane.services.accounts import KeySpec, create_account, create_key
from controlplane.services.errors import ServiceError


class Command(ServiceCommand):
    help = (
        "Creates and prints an API key of an account. Creates the account too if it does not exist."
    )
    refusals = (ServiceError,)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--account", required=True, metavar="NAME")
        parser.add_argument("--name", required=True, metavar="KEYNAME")
        parser.add_argument(
            "--plan",
            choices=Plan.values,
            default=Plan.FREE,
            help=f"of a new account, {Plan.FREE} by default; an existing account keeps its plan",
        )
        parser.add_argument(
            "--project", metavar="ID", help="the only project that the key can access"
        )
        parser.add_argument("--read-only", action="store_true", help="it changes nothing")
        parser.add_argument(
            "--expires",
            metavar="TIME",
            help="when the key expires, such as 2027-01-31 or 2027-01-31T12:00:00Z; in UTC if "
            "it has no time zone",
        )
        super().add_arguments(parser)

    def handle(
        self,
        *args: Any,
        account: str,
        name: str,
        plan: str,
        project: str | None,
        read_only: bool,
        expires: str | None,
        **options: Any,
    ) -> None:
        spec = KeySpec(
            name=name, project_id=project, read_only=read_only, expires_at=time_of(expires)
        )
        # If the key cannot be made, no new account is left behind.
        with transaction.atomic():
            owner = Account.objects.filter(name=account).first()
            _, key = create_key(owner or create_account(account, plan), spec)
        self.stdout.write(key)


def time_of(text: str | None) -> datetime | None:
    """The time in UTC; None for None. Raises CommandError."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise CommandError(
            f'--expires: "{text}" is not a time such as 2027-01-31T12:00:00Z'
        ) from error
