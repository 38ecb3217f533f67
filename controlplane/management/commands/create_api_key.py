"""`manage.py create_api_key --account NAME --name KEYNAME`: prints a new key, once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.models import Account, Plan
from controlplane.services.accounts import issue_key


class Command(BaseCommand):
    help = "Prints a new API key of an account, which is made if it does not exist."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--account", required=True, metavar="NAME")
        parser.add_argument("--name", required=True, metavar="KEYNAME")
        parser.add_argument(
            "--plan",
            choices=Plan.values,
            default=Plan.UNLIMITED,
            help="of a new account; an existing one keeps its own",
        )
        parser.add_argument("--state-dir", metavar="DIR", help="as given to `up`")

    def handle(self, *args: Any, account: str, name: str, plan: str, **options: Any) -> None:
        for label, value in (("account", account), ("key", name)):
            if not value.strip() or len(value) > 64:
                raise CommandError(f"the {label}'s name must have 1 to 64 characters")
        owner, _ = Account.objects.get_or_create(name=account, defaults={"plan": plan})
        _, key = issue_key(owner, name)
        self.stdout.write(key)
