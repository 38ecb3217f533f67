"""The status of the service, for the accounts that run it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.api.errors import NotFound
from console.api.resources.service_status import Host
from console.forms.fields import ConfirmForm
from console.pages.live_regions import Polling, Shown, page_and_region
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, act, choices, done, show_confirmation
from console.pages.statuses import Status
from console.request import ConsoleRequest

# Milliseconds between two polls: signs of life that are missing change no mark.
POLL_INTERVAL_MS = 5_000
RUNNING = Status("running", "Up", "awake", "good")
SILENT = Status("silent", "Not responding", "cross", "bad")


@dataclass(frozen=True)
class HostRow:
    host: Host

    @property
    def processes(self) -> list[tuple[str, Status, datetime | None]]:
        """Each process with its state, and when it last gave a sign of life."""
        ago = {"worker": self.host.worker_seen, "proxy": self.host.proxy_seen}
        now = datetime.now(UTC)
        return [
            (
                name.capitalize(),
                SILENT if name in self.host.missing else RUNNING,
                None if seconds is None else now - timedelta(seconds=seconds),
            )
            for name, seconds in ago.items()
        ]

    @property
    def may_be_lost(self) -> bool:
        """Whether the server would accept that it is declared lost."""
        return "worker" in self.host.missing and not self.host.lost

    @property
    def is_short_of_disk(self) -> bool:
        free, reserve = self.host.disk_free, self.host.disk_reserve
        return free is not None and reserve is not None and free < reserve


def _contents(request: ConsoleRequest) -> Shown:
    details = request.api.status.details()
    rows = [HostRow(host) for host in details.hosts]
    is_well = not any(host.missing or host.problems for host in details.hosts)
    context = {"details": details, "hosts": rows, "is_well": is_well}
    return context, Polling(every=POLL_INTERVAL_MS)


show = page_and_region(_contents, "status.html", "_status_of_service.html")


@require_POST
def drain(request: ConsoleRequest, host_id: str) -> HttpResponse:
    """Place no new projects on a host, or again."""
    on = request.POST.get("to") == "on"
    return act(
        request,
        lambda: request.api.status.drain(host_id, draining=on),
        otherwise=reverse("status"),
        message=f"Host {host_id} gets {'no ' if on else ''}new projects{'' if on else ' again'}.",
    )


def declare_lost(request: ConsoleRequest, host_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=host_id, what="name")
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            restored = request.api.status.declare_lost(host_id)
            projects = f"{restored} project{'s' * (restored != 1)}"
            message = f"Host {host_id} is declared lost; other hosts restore {projects}."
            return done(request, reverse("status"), message, is_live=False)
    _, others = _host(request, host_id)
    return FormPage(
        title=f"Declare the host “{host_id}” lost",
        intro="For a machine that does not come back: the other hosts of its region restore its"
        " projects from the copies in the history store. What was committed after the last copy is"
        f" lost. If {host_id} does come back, it does not serve these projects any more.",
        submit="Declare lost",
        danger=True,
        back=reverse("status"),
        blocked=""
        if form.is_bound or others
        else "No other host of its region is up to restore its projects. Start one first.",
    ).show(request, form)


def remove(request: ConsoleRequest, host_id: str) -> HttpResponse:
    def page() -> FormPage:
        host, _ = _host(request, host_id)
        # For a form that was sent, the server's own refusal is shown.
        why = _removal_refusal(host) if host and request.method != "POST" else ""
        return FormPage(
            title=f"Remove host {host_id}",
            intro="" if why else "The server refuses this as long as the host has projects.",
            submit="Remove host",
            danger=True,
            back=reverse("status"),
            blocked=why,
        )

    def do() -> HttpResponse:
        request.api.status.remove(host_id)
        return done(request, reverse("status"), f"Host {host_id} is removed.", is_live=False)

    return show_confirmation(request, page, do)


def _host(request: ConsoleRequest, host_id: str) -> tuple[Host | None, list[Host]]:
    """Return the host, and the other hosts of its region that are up. Raises NotFound. For a form
    that was sent, return None instead of raising."""
    hosts = choices(request, lambda: list(request.api.status.details().hosts))
    host = next((one for one in hosts if one.id == host_id), None)
    if host is None and request.method != "POST":
        raise NotFound("host not found", status=404)
    others = [
        one
        for one in hosts
        if host
        and one is not host
        and one.region_id == host.region_id
        and not one.lost
        and "worker" not in one.missing
    ]
    return host, others


def _removal_refusal(host: Host) -> str:
    """Return all that stands in the way; "" if it can be removed."""
    endpoints = sum(host.computes.values())
    reasons = []
    if endpoints:
        reasons.append(
            f"It has projects, with {endpoints} endpoint{'s' * (endpoints != 1)}: delete or move "
            "them first. If its machine does not come back, declare it lost instead."
        )
    if "worker" not in host.missing:
        reasons.append("Its worker is up: stop it first.")
    return " ".join(reasons)
