"""`manage.py events`: lists the latest events of all accounts, and those that belong to no
account."""

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.deployment.service_command import ServiceCommand
from controlplane.events.recording import as_json
from controlplane.models import Account, Event
from controlplane.services.errors import Invalid
from controlplane.services.monitoring.events import EventFilter, types_named


class Command(ServiceCommand):
    help = "Lists the latest events of all accounts, the newest last."
    refusals = (Invalid,)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--account", metavar="NAME", help='only events of this account; "" for those of none'
        )
        parser.add_argument(
            "--type",
            metavar="TYPES",
            default="",
            help="only these types, separated by commas, such as connection.refused,endpoint.*",
        )
        parser.add_argument(
            "--limit", type=int, default=50, metavar="N", help="at most this many; 50 by default"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object per line")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        event_filter = EventFilter(types=types_named(options["type"]))
        events = event_filter.narrow(Event.objects.select_related("account"))
        if (name := options["account"]) is not None:
            events = events.filter(account=_account(name))
        newest = events.order_by("-at", "-id")[: max(1, options["limit"])]
        for event in reversed(newest):
            whole = {"account": event.account and event.account.name, **as_json(event)}
            self.stdout.write(json.dumps(whole) if options["json"] else _text_line(event))


def _account(name: str) -> Account | None:
    """Return the account with that name; None for "". Raises CommandError if no account has it."""
    if not name:
        return None
    account = Account.objects.filter(name=name).first()
    if account is None:
        raise CommandError(f'there is no account "{name}"')
    return account


def _text_line(event: Event) -> str:
    shape = as_json(event)
    actor = " ".join(filter(None, (event.actor_type, event.actor_name, event.address)))
    account = event.account.name if event.account else "-"
    where = event.endpoint_id or event.branch_id or event.project_id or ""
    return f"{shape['at']}  {account}  {event.type}  {where}  {event.summary} ({actor})"
