"""`manage.py accounts`: lists the accounts, or creates, changes, disables, deletes or recovers one;
`accounts keys` lists or revokes the API keys of one."""

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.deployment.service_command import ServiceCommand, table
from controlplane.models import Plan
from controlplane.services import account_management as management
from controlplane.services.accounts import create_account, list_keys, revoke_key
from controlplane.services.errors import ServiceError

ACTIONS = {
    "create": "create an account",
    "set-plan": "move the account to another plan, at once",
    "disable": "refuse its keys and connections from now on, and suspend its endpoints",
    "enable": "accept its keys and connections again",
    "delete": "delete it with all its projects; its name must be typed, or given with --confirm",
    "recover": "undo the deletion, while PERCH_RECOVERY_HOURS last",
}


class Command(ServiceCommand):
    help = "Lists the accounts, or creates, changes, disables, deletes or recovers one."
    refusals = (ServiceError,)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        actions = parser.add_subparsers(dest="action")
        actions.add_parser("list", help="list the accounts, which is the default")
        for name, words in ACTIONS.items():
            action = actions.add_parser(name, help=words)
            action.add_argument("name", metavar="NAME")
            if name == "create":
                action.add_argument("--plan", choices=Plan.values, default=Plan.FREE)
            if name == "set-plan":
                action.add_argument("plan", choices=Plan.values)
            if name == "delete":
                action.add_argument("--confirm", metavar="NAME", help="the name, once more")
        keys = actions.add_parser("keys", help="list or revoke the API keys of an account")
        of_keys = keys.add_subparsers(dest="key_action", required=True)
        listing = of_keys.add_parser("list", help="list the keys that are not revoked")
        listing.add_argument("name", metavar="NAME")
        revoking = of_keys.add_parser("revoke", help="revoke a key, at once")
        revoking.add_argument("name", metavar="NAME")
        revoking.add_argument("key_id", metavar="ID", type=int)

    def handle(self, *args: Any, action: str | None, **options: Any) -> None:
        if action == "keys":
            self._keys(**options)
        elif action in ACTIONS:
            self._act(action, **options)
        else:
            self._list()

    def _act(
        self, action: str, *, name: str, plan: str = "", confirm: str | None = None, **options: Any
    ) -> None:
        if action == "create":
            create_account(name, plan)
            self.stdout.write(f"{name} is created on the plan {plan}.")
            return
        account = management.find_account(name=name)
        if action == "set-plan":
            management.set_plan(account, plan)
            done = f"is on the plan {plan} now"
        elif action == "disable":
            management.disable(account)
            done = "is disabled"
        elif action == "enable":
            management.enable(account)
            done = "is enabled"
        elif action == "recover":
            management.recover(account)
            done = "is recovered"
        else:
            management.refuse_operator(account)
            management.delete(account, typed=confirm or self._typed(name, account.living))
            until = management.find_account(name=name).recoverable_until
            hint = f"; until {until:%Y-%m-%d %H:%M} UTC it can be recovered" if until else ""
            done = f"is deleted{hint}"
        self.stdout.write(f"{name} {done}.")

    def _typed(self, name: str, projects: int) -> str:
        self.stdout.write(f"This deletes the account with {projects} projects and all their data.")
        try:
            return input("Type the name of the account: ")
        except EOFError:
            raise CommandError("nothing was typed; --confirm NAME confirms without") from None

    def _list(self) -> None:
        rows = [("account", "plan", "projects", "since", "")]
        for account in management.list_accounts():
            marks = [
                ("operator", account.is_operator),
                ("disabled", account.disabled_at and not account.deleted_at),
                ("deleted", account.deleted_at),
            ]
            rows.append(
                (
                    account.name,
                    account.plan,
                    str(account.living),
                    _day(account.created_at),
                    ", ".join(mark for mark, holds in marks if holds),
                )
            )
        self.stdout.write(table(rows))

    def _keys(self, *, key_action: str, name: str, key_id: int = 0, **options: Any) -> None:
        account = management.find_account(name=name)
        if key_action == "revoke":
            key = revoke_key(account, key_id)
            self.stdout.write(f'The key {key.id}, "{key.name}", is revoked.')
            return
        rows = [("id", "key", "since", "last used", "from", "")]
        for key in list_keys(account):
            limits = [
                ("read-only", key.read_only),
                (f"project {key.project_id}", key.project_id),
                (f"until {_day(key.expires_at)}", key.expires_at),
            ]
            rows.append(
                (
                    str(key.id),
                    key.name,
                    _day(key.created_at),
                    _day(key.last_used_at),
                    key.last_used_from_addr,
                    ", ".join(words for words, holds in limits if holds),
                )
            )
        self.stdout.write(table(rows))


def _day(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d}" if at else "never"
