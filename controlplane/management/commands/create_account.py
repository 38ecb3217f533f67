"""`manage.py create_account --name NAME --plan PLAN`: makes an account, and prints its limits."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from controlplane.deployment.service_command import ServiceCommand
from controlplane.models import Account, Plan
from controlplane.services.accounts import create_account
from controlplane.services.errors import ServiceError


class Command(ServiceCommand):
    help = "Creates an account and prints its name, its plan and the plan's limits."
    refusals = (ServiceError,)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", required=True, metavar="NAME")
        parser.add_argument(
            "--plan", default=Plan.FREE, metavar="PLAN", help=f"one of: {', '.join(Plan.values)}"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, name: str, plan: str, **options: Any) -> None:
        account = create_account(name, plan)
        self.stdout.write(f"account   {account.name}\nplan      {account.plan}")
        for what, limit in limits_in_words(account):
            self.stdout.write(f"  {what:<28} {limit}")
        create_key = f"create_api_key --account {account.name} --name KEY"
        self.stdout.write(f"a key     {settings.PROGRAM} {create_key}")


def limits_in_words(account: Account) -> list[tuple[str, str]]:
    limits = account.limits
    numbers = {
        "projects": limits.projects,
        "branches of a project": limits.branches_of_project,
        "endpoints of a project": limits.endpoints_of_project,
        "roles of a branch": limits.roles_of_branch,
        "databases of a branch": limits.databases_of_branch,
        "MiB of a branch": limits.branch_bytes and limits.branch_bytes >> 20,
        "connections": limits.connections,
        "seconds of history": limits.history_seconds,
        "requests per minute": limits.requests_per_minute,
        "webhooks": limits.webhooks,
    }
    words = [(what, "any" if most is None else str(most)) for what, most in numbers.items()]
    return [*words, ("compute units of an endpoint", f"{limits.largest_compute:g}")]
