"""The status of the service: for who runs it."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api_status import Host
from console.request import ConsoleRequest
from console.statuses import Status

THERE = Status("there", "There", "awake", "good")
SILENT = Status("silent", "Silent", "cross", "bad")
LANES = {
    "wakes": "Wakes of clients",
    "requests": "Requests",
    "upkeep": "Upkeep",
}


@dataclass(frozen=True)
class HostRow:
    host: Host

    @property
    def processes(self) -> list[tuple[str, Status, float | None]]:
        """Each with how it is, and how many seconds ago it said that it is there."""
        seen = {"worker": self.host.worker_seen, "proxy": self.host.proxy_seen}
        return [
            (name.capitalize(), SILENT if name in self.host.missing else THERE, ago)
            for name, ago in seen.items()
        ]

    @property
    def queues(self) -> list[tuple[str, Any]]:
        return [(LANES.get(lane.name, lane.name), lane) for lane in self.host.lanes]

    @property
    def is_short_of_disk(self) -> bool:
        free, reserve = self.host.disk_free, self.host.disk_reserve
        return free is not None and reserve is not None and free < reserve


@require_safe
def show(request: ConsoleRequest) -> HttpResponse:
    return render(request, "status.html", _contents(request))


@require_safe
def live(request: ConsoleRequest) -> HttpResponse:
    return render(request, "_status_of_service.html", {**_contents(request), "fragment": True})


def _contents(request: ConsoleRequest) -> dict[str, Any]:
    details = request.api.status.details()
    rows = [HostRow(host) for host in details.hosts]
    is_well = not any(host.missing or host.problems for host in details.hosts)
    return {"details": details, "hosts": rows, "is_well": is_well}
