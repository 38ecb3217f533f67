"""`manage.py hosts`: lists the hosts; `drain`, `resume`, `adopt` and `remove` change one."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.compute.space import in_words
from controlplane.management.host_table import ago, jobs_by_host, table
from controlplane.models import Host
from controlplane.operations.own_host import adopt_host
from controlplane.services.errors import ServiceError
from controlplane.services.hosts import (
    counted,
    drain_host,
    find_host,
    refuse_running,
    remove_host,
    what_is_left,
)

COLUMNS = (
    *("host", "region", "address", "worker seen", "proxy seen", "version", "load", "disk free"),
    *("projects", "active", "jobs", ""),
)
# In `help`, and after each `drain`.
MOVES_NOTHING = "The projects on it stay and are served: draining moves nothing"


class Command(BaseCommand):
    help = "Lists the hosts, or drains, resumes, adopts or removes one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )
        actions = parser.add_subparsers(dest="action")
        actions.add_parser("list", help="list the hosts, which is the default")
        for name, help_text in (
            (
                "drain",
                f"place no new projects on the host, and print what is left on it. {MOVES_NOTHING}",
            ),
            ("resume", "place new projects on the host again"),
            (
                "adopt",
                "let this machine's state directory serve the host, in place of one that is lost",
            ),
            ("remove", "remove a host that is empty and whose worker is stopped"),
        ):
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", metavar="NAME")

    def handle(self, *args: Any, action: str | None, name: str = "", **options: Any) -> None:
        try:
            self.stdout.write(self._done(action, name))
        except ServiceError as error:
            raise CommandError(error.message) from error

    def _done(self, action: str | None, name: str) -> str:
        if action == "drain":
            left = what_is_left([drain_host(name, draining=True)])
            return f"{name} gets no new projects. {MOVES_NOTHING}. Left on it: {left}."
        if action == "resume":
            drain_host(name, draining=False)
            return f"{name} gets new projects again."
        if action == "adopt":
            host = find_host(name)
            refuse_running(host)
            adopt_host(host)
            return f"{name} is served from {settings.STATE_DIR} now."
        if action == "remove":
            remove_host(name)
            return f"{name} is removed."
        return _list()


def _list() -> str:
    waiting = jobs_by_host()
    rows = [COLUMNS]
    for host in counted(Host.objects.order_by("-region__default", "region", "id")):
        disk = "" if host.disk_free_bytes is None else in_words(host.disk_free_bytes)
        load = "" if host.cpu_load is None else f"{host.cpu_load:.1f} of {host.cpus}"
        rows.append(
            (
                *(host.id, host.region_id, f"{host.address}:{host.port}"),
                *(ago(host.worker_seen_at), ago(host.proxy_seen_at), host.version),
                *(load, disk, str(host.living), str(host.active)),
                *(str(waiting.get(host.id, 0)), "draining" if host.draining else ""),
            )
        )
    return table(rows)
