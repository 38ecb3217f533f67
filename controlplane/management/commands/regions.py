"""`manage.py regions`: lists the regions; `drain`, `resume`, `adopt` and `remove` change the
hosts of one. `manage.py hosts` does so for a single host."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from controlplane.deployment.service_command import (
    FORCE_HELP,
    ServiceCommand,
    ago,
    jobs_by_host,
    oldest,
    table,
)
from controlplane.models import Host, Region
from controlplane.operations.own_host import adopt_host
from controlplane.services.errors import ServiceError
from controlplane.services.hosts import counted, refuse_running, remaining_text, remove_host

COLUMNS = ("region", "address", "worker seen", "proxy seen", "projects", "active", "jobs", "")


class Command(ServiceCommand):
    help = "Lists the regions, or drains, resumes, adopts or removes one."
    refusals = (ServiceError,)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        actions = parser.add_subparsers(dest="action")
        actions.add_parser("list", help="list the regions, which is the default")
        for name, help_text in (
            ("drain", "place no new projects in the region, and print what is left in it"),
            ("resume", "place new projects in the region again"),
            (
                "adopt",
                "let this machine's state directory serve the region's only host, if it is lost",
            ),
            ("remove", "remove a region that is empty and whose workers are stopped"),
        ):
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", metavar="NAME")
            if name == "remove":
                action.add_argument("--force", action="store_true", help=FORCE_HELP)

    def handle(
        self, *args: Any, action: str | None, name: str = "", force: bool = False, **options: Any
    ) -> None:
        if action == "drain":
            self._drain(name, draining=True)
        elif action == "resume":
            self._drain(name, draining=False)
        elif action == "adopt":
            self._adopt(name)
        elif action == "remove":
            self._remove(name, force=force)
        else:
            self._list()

    def _list(self) -> None:
        waiting = jobs_by_host()
        rows = [COLUMNS]
        for region in Region.objects.order_by("-default", "id"):
            hosts = _hosts_of(region)
            draining = bool(hosts) and all(host.draining for host in hosts)
            marks = [("default", region.default), ("draining", draining)]
            rows.append(
                (
                    region.id,
                    f"{region.host}:{region.port}",
                    ago(oldest(host.worker_seen_at for host in hosts)),
                    ago(oldest(host.proxy_seen_at for host in hosts)),
                    str(sum(host.living for host in hosts)),
                    str(sum(host.active for host in hosts)),
                    str(sum(waiting.get(host.id, 0) for host in hosts)),
                    ", ".join(mark for mark, holds in marks if holds),
                )
            )
        self.stdout.write(table(rows))

    def _drain(self, name: str, *, draining: bool) -> None:
        region = find_region(name)
        Host.objects.filter(region=region).update(draining=draining)
        if draining:
            left = remaining_text(_hosts_of(region))
            self.stdout.write(f"{name} accepts no new projects. Left in it: {left}.")
        else:
            self.stdout.write(f"{name} accepts new projects again.")

    def _adopt(self, name: str) -> None:
        hosts = _hosts_of(find_region(name))
        if len(hosts) != 1:
            raise CommandError(
                f"{name} has {len(hosts)} hosts: use `hosts adopt` with a host's name"
            )
        refuse_running(hosts[0])
        adopt_host(hosts[0])
        self.stdout.write(f"{name} is served from {settings.STATE_DIR} now.")

    @transaction.atomic
    def _remove(self, name: str, *, force: bool) -> None:
        region = find_region(name)
        for host in _hosts_of(region):
            remove_host(host.id, force=force)
        region.delete()
        self.stdout.write(f"{name} is removed.")


def find_region(name: str) -> Region:
    region = Region.objects.filter(id=name).first()
    if region is None:
        known = ", ".join(Region.objects.order_by("id").values_list("id", flat=True))
        raise CommandError(f'unknown region "{name}"; use one of: {known or "none"}')
    return region


def _hosts_of(region: Region) -> list[Any]:
    return list(counted(Host.objects.filter(region=region)).order_by("id"))
