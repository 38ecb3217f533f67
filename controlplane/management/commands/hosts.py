"""`manage.py hosts`: lists the hosts; `drain`, `resume`, `adopt`, `lost` and `remove` change one;
`move` moves a project to one; `add` and `join` make a new machine one."""

import shlex
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.compute.data.state_directory import StateDirectoryUnusable
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.space import size_text
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.deployment.service_command import (
    FORCE_HELP,
    ServiceCommand,
    ago,
    jobs_by_host,
    table,
)
from controlplane.fleet.invitations import invite
from controlplane.fleet.joining import ENVIRONMENT, JoinRefused, content_for, join
from controlplane.fleet.lost_hosts import declare_lost
from controlplane.fleet.moves import empty_host, move
from controlplane.models import Action, Host
from controlplane.operations.own_host import adopt_host
from controlplane.services.errors import ServiceError
from controlplane.services.hosts import counted, drain_host, find_host, refuse_running, remove_host

COLUMNS = (
    *("host", "region", "address", "worker seen", "proxy seen", "version", "load", "disk free"),
    *("projects", "active", "jobs", ""),
)


class Command(ServiceCommand):
    help = "Lists the hosts, or adds, drains, resumes, adopts, gives up or removes one."
    refusals = (
        *(ServiceError, JoinRefused, StateDirectoryUnusable, AccountUnusable, OtherSecretKey),
        *(OtherVersion, OSError),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        actions = parser.add_subparsers(dest="action")
        actions.add_parser("list", help="list the hosts, which is the default")
        for name, help_text in (
            (
                "drain",
                "place no new projects on the host, and move its projects to the other hosts of "
                "its region, in the background",
            ),
            ("resume", "place new projects on the host again"),
            (
                "adopt",
                "let this machine's state directory serve the host, in place of one that is lost",
            ),
            (
                "lost",
                "declare a host lost for good: other hosts of its region restore its projects from "
                "the history's store, and it is shut out if it comes back",
            ),
            ("remove", "remove a host that is empty and whose worker is stopped"),
        ):
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", metavar="NAME")
            if name == "remove":
                action.add_argument("--force", action="store_true", help=FORCE_HELP)
            if name == "lost":
                action.add_argument("--yes", action="store_true", help="do not ask")
        action = actions.add_parser("move", help="move a project to another host of its region")
        action.add_argument("project", metavar="PROJECT")
        action.add_argument("--to", required=True, metavar="HOST")
        action = actions.add_parser(
            "add", help="print the command that makes a new machine a host of this region"
        )
        action.add_argument("name", metavar="NAME", help="the new host's name")
        action.add_argument(
            "--address", required=True, help="the new host's own host name, as clients reach it"
        )
        action.add_argument(
            "--api", metavar="URL", required=True, help="the API, as the new machine reaches it"
        )
        action = actions.add_parser("join", help="on a new machine: what `add` has printed")
        action.add_argument("token", metavar="TOKEN")
        action.add_argument("--api", metavar="URL", required=True)

    def handle(self, *args: Any, action: str | None, **options: Any) -> None:
        if action == "add":
            done = _added(options["name"], options["address"], options["api"])
        elif action == "move":
            done = _moved(options["project"], options["to"])
        elif action == "join":
            done = _joined(options["token"], options["api"])
        elif action is None or action == "list":
            done = _list()
        else:
            done = self._changed(action, **options)
        self.stdout.write(done)

    def _changed(
        self, action: str, *, name: str, force: bool = False, yes: bool = False, **options: Any
    ) -> str:
        if action == "drain":
            return _drained(name)
        if action == "resume":
            drain_host(name, draining=False)
            return f"{name} gets new projects again."
        if action == "adopt":
            host = find_host(name)
            refuse_running(host)
            adopt_host(host)
            return f"{name} is served from {settings.STATE_DIR} now."
        if action == "lost":
            return self._lost(name, confirmed=yes)
        remove_host(name, force=force)
        return f"{name} is removed."

    def _lost(self, name: str, *, confirmed: bool) -> str:
        host = find_host(name)
        if not confirmed:
            self.stdout.write(
                f"Other hosts will restore the {host.living} projects of {name} from the history's "
                "store. What was committed after the last copy is lost, and the present state "
                f"directory of {name} is shut out for good."
            )
            try:
                typed = input("Type the name of the host: ")
            except EOFError:
                raise CommandError("nothing was typed; --yes confirms without") from None
            if typed != name:
                raise CommandError(f'"{typed}" is not the name of the host; nothing was changed')
        found = declare_lost(name)
        words = [f"{name} is declared lost. Other hosts restore {found.taken} projects."]
        if found.without_copy:
            words.append(f"{found.without_copy} stay, as the store has no copy of them.")
        if found.without_place:
            words.append(
                f"{found.without_place} stay, as no other host has room and their version of "
                "Postgres; they follow once one has."
            )
        return " ".join(words)


def _added(name: str, address: str, api_url: str) -> str:
    refuse_other_version()
    refuse_other_key()
    if complaint := Host.complaint(name):
        raise JoinRefused(complaint)
    if Host.objects.filter(id=name).exists():
        raise JoinRefused(f'there is a host "{name}" already')
    token = invite(content_for(name=name, address=address, region=settings.REGION))
    return (
        f"perch hosts join {token} --api {shlex.quote(api_url)}\n"
        "Run this on the new machine within ten minutes, with the same version of Perch. It works "
        "once, and brings the service's keys: show it to nobody."
    )


def _moved(project_id: str, to: str) -> str:
    operations = move(project_id, to=to)
    moving = next(one for one in operations if one.action == Action.MOVE_PROJECT)
    return f"The operation {moving.id} moves the project {project_id} to {to}."


def _drained(name: str) -> str:
    host = drain_host(name, draining=True)
    emptied = empty_host(host)
    lines = [f"{name} gets no new projects. Projects that are being moved: {len(emptied.moved)}."]
    lines += [f"{project} stays: {why}." for project, why in emptied.stay.items()]
    return "\n".join(lines)


def _joined(token: str, api_url: str) -> str:
    name = join(token, api_url)
    environment = settings.STATE_DIR / ENVIRONMENT
    return (
        f"{settings.STATE_DIR} is the state directory of the host {name}; {environment} has its "
        "variables. Start it with: set -a; . "
        f"{shlex.quote(str(environment))}; set +a; "
        f"perch up --host 0.0.0.0 --state-dir {shlex.quote(str(settings.STATE_DIR))}"
    )


def _state_of(host: Host) -> str:
    if host.lost_at:
        return "lost"
    return "draining" if host.draining else ""


def _list() -> str:
    waiting = jobs_by_host()
    rows = [COLUMNS]
    for host in counted(Host.objects.order_by("-region__default", "region", "id")):
        disk = "" if host.disk_free_bytes is None else size_text(host.disk_free_bytes)
        load = "" if host.cpu_load is None else f"{host.cpu_load:.1f} of {host.cpus}"
        rows.append(
            (
                *(host.id, host.region_id, f"{host.address}:{host.port}"),
                *(ago(host.worker_seen_at), ago(host.proxy_seen_at), host.version),
                *(load, disk, str(host.living), str(host.active)),
                *(str(waiting.get(host.id, 0)), _state_of(host)),
            )
        )
    return table(rows)
