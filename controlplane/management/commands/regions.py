"""`manage.py regions`: lists the regions; `drain`, `resume` and `remove` change one."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.db.models import Count, Q

from controlplane import clock
from controlplane.models import (
    UNFINISHED,
    EndpointState,
    Lane,
    Operation,
    Project,
    Region,
)
from controlplane.operations.own_region import adopt_region
from controlplane.operations.retention import forget_projects

COLUMNS = ("region", "address", "worker seen", "proxy seen", "projects", "active", "jobs", "")


class Command(BaseCommand):
    help = "Lists the regions, or drains, resumes, adopts or removes one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )
        actions = parser.add_subparsers(dest="action")
        actions.add_parser("list", help="list the regions, which is the default")
        for name, help_text in (
            ("drain", "place no new projects in the region, and print what is left in it"),
            ("resume", "place new projects in the region again"),
            (
                "adopt",
                "let this host's state directory serve the region, in place of one that is lost",
            ),
            ("remove", "remove a region that is empty and whose worker is stopped"),
        ):
            action = actions.add_parser(name, help=help_text)
            action.add_argument("name", metavar="NAME")
            if name == "remove":
                action.add_argument(
                    "--force",
                    action="store_true",
                    help="remove its projects as well, with their endpoints, roles and passwords: "
                    "for a host that is lost. The data on the host is not deleted, but Perch "
                    "has no record of it any more",
                )

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
        waiting = jobs_by_region()
        rows = [COLUMNS]
        for region in _counted(Region.objects.order_by("-default", "id")):
            marks = [("default", region.default), ("draining", region.draining)]
            rows.append(
                (
                    region.id,
                    f"{region.host}:{region.port}",
                    _ago(region.worker_seen_at),
                    _ago(region.proxy_seen_at),
                    str(region.living),
                    str(region.active),
                    str(waiting.get(region.id, 0)),
                    ", ".join(mark for mark, holds in marks if holds),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.stdout.write("  ".join(cells).rstrip())

    def _drain(self, name: str, *, draining: bool) -> None:
        region = find_region(name)
        Region.objects.filter(id=region.id).update(draining=draining)
        if draining:
            self.stdout.write(
                f"{name} accepts no new projects. Left in it: {what_is_left(region)}."
            )
        else:
            self.stdout.write(f"{name} accepts new projects again.")

    def _adopt(self, name: str) -> None:
        region = find_region(name)
        if not region.is_away:
            raise CommandError(f"the worker of {name} still runs; stop it first")
        adopt_region(region)
        self.stdout.write(f"{name} is served from {settings.STATE_DIR} now.")

    def _remove(self, name: str, *, force: bool) -> None:
        region = find_region(name)
        if not region.is_away:
            raise CommandError(f"the worker of {name} still runs; stop it first")
        left = what_is_left(region)
        if left != "nothing" and not force:
            raise CommandError(
                f"{name} is not empty: {left}. Delete the projects while its worker runs; if "
                "its host is lost, --force removes them"
            )
        forget(region)
        self.stdout.write(f"{name} is removed.")


def find_region(name: str) -> Region:
    region: Region | None = _counted(Region.objects.filter(id=name)).first()
    if region is None:
        known = ", ".join(Region.objects.order_by("id").values_list("id", flat=True))
        raise CommandError(f'unknown region "{name}"; use one of: {known or "none"}')
    return region


def what_is_left(region: Any) -> str:
    """What keeps the region from being removed, in words, or "nothing". `region` comes from
    `find_region`, with its counts."""
    unfinished = Operation.objects.filter(project__region=region, status__in=UNFINISHED).count()
    parts = [
        (region.living, "project"),
        (region.active, "active endpoint"),
        (unfinished, "unfinished operation"),
    ]
    words = [f"{count} {what}{'s' * (count != 1)}" for count, what in parts if count]
    return ", ".join(words) or "nothing"


def forget(region: Region) -> None:
    """Delete the region, the rows of all its projects (deleted ones too), and its jobs."""
    queues = [region.queue(lane) for lane in Lane]
    with transaction.atomic():
        forget_projects(list(Project.objects.filter(region=region).values_list("id", flat=True)))
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM procrastinate_jobs WHERE queue_name = ANY(%s)", [queues])
        region.delete()


def jobs_by_region() -> dict[str, int]:
    """How many jobs wait or are running, in all lanes of each region."""
    jobs = (
        "SELECT regexp_replace(queue_name, '^region-(.*)-[a-z]+$', '\\1'), count(*)"
        " FROM procrastinate_jobs WHERE status IN ('todo', 'doing') GROUP BY 1"
    )
    with connection.cursor() as cursor:
        cursor.execute(jobs)
        return dict(cursor.fetchall())


def _counted(regions: Any) -> Any:
    """Add the number of each region's projects, and of their active endpoints."""
    exists = Q(projects__deleted_at=None)
    active = Q(
        projects__endpoints__deleted_at=None,
        projects__endpoints__current_state=EndpointState.ACTIVE,
    )
    return regions.annotate(
        living=Count("projects", filter=exists, distinct=True),
        active=Count("projects__endpoints", filter=exists & active, distinct=True),
    )


def _ago(at: datetime | None) -> str:
    return f"{(clock.now() - at).total_seconds():.0f} s ago" if at else "never"
