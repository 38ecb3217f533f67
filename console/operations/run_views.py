"""A run's page: the operations of one chain with their steps, why they failed, and their log."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.errors import NotFound
from console.api.fields import stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import each_or_none, in_parallel
from console.api.resources.actors import Actor
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.events import Event
from console.api.resources.operations import Operation
from console.api.resources.projects import Project
from console.api.transport import new_once_token
from console.events.rows import EventRow, event_row
from console.operations.run_rows import (
    RunRow,
    log_lines,
    retries_by_run,
    run_url,
    things,
    why_failed,
)
from console.operations.runs import Run
from console.operations.waterfall import waterfall
from console.pages.addresses import Existing
from console.pages.live_regions import Polling, page_and_region, polling
from console.request import ConsoleRequest

# More operations than one chain has, and more than there are retries of one run.
MAX_CHAIN_OPERATIONS = 100
MAX_RETRIES = 100
# The steps of each operation take one call. In a longer chain, only the most useful are read.
MAX_STEPS_CALLS = 12
MAX_EVENTS = 20


@require_safe
def show_operation(request: ConsoleRequest, project_id: str, operation_id: str) -> HttpResponse:
    """Redirect to the operation's run. On a server without chains, show it as a run of its own."""
    operation = _operation(request.api, project_id, operation_id)
    if operation.chain_id and (url := run_url(project_id, Run([operation]))):
        return HttpResponseRedirect(f"{url}#operation-{operation_id}")
    return _show_alone(request, project_id=project_id, operation_id=operation_id)


def _operation(api: ManagementAPI, project_id: str, operation_id: str) -> Operation:
    operation = api.operation(project_id, operation_id)
    if operation.project_id not in ("", project_id):
        raise NotFound("operation not found")
    return operation


def _alone(
    request: ConsoleRequest, project_id: str, operation_id: str
) -> tuple[dict[str, Any], Polling]:
    api = request.api
    operation, branches, project, endpoints = in_parallel(
        lambda: _operation(api, project_id, operation_id),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
        lambda: api.endpoints(project_id),
    )
    url = reverse("operation_live", args=[project_id, operation_id])
    return _page(request, url, Run([operation]), (project, branches, endpoints))


_show_alone, operation_live = page_and_region(_alone, "run.html", "_run.html")


def run_of_chain(api: ManagementAPI, project_id: str, chain_id: str) -> Run:
    """Read all operations of a chain. Raises NotFound."""
    page = api.operations(project_id, limit=MAX_CHAIN_OPERATIONS, chain_id=chain_id)
    # A server that ignores the filter lists all operations.
    members = [operation for operation in page.items if operation.chain_id == chain_id]
    if not members:
        raise NotFound("There is no such run")
    return Run(members[::-1])


def _of_chain(
    request: ConsoleRequest, project_id: str, chain_id: str
) -> tuple[dict[str, Any], Polling]:
    api = request.api
    run, project, branches, endpoints = in_parallel(
        lambda: run_of_chain(api, project_id, chain_id),
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
    )
    details = _Details(api, project_id, run)
    url = reverse("run_live", args=[project_id, chain_id])
    return _page(request, url, details.run, (project, branches, endpoints), details)


show, live = page_and_region(_of_chain, "run.html", "_run.html")


class _Details:
    """Further facts about a run, all read at the same time once its operations are known. What
    cannot be read is left out, because the page is worth more than an error page."""

    def __init__(self, api: ManagementAPI, project_id: str, run: Run) -> None:
        with_steps = [
            partial(api.operation, project_id, operation.id) for operation in _most_relevant(run)
        ]
        calls: list[Callable[[], Any]] = [
            lambda: api.events(project_id, limit=MAX_EVENTS, operation_id=run.first.id).items,
            partial(_retries, api, project_id, run),
            *with_steps,
        ]
        events, retries, *answers = each_or_none(lambda call: call(), calls)
        self.retries: Sequence[Operation] = retries or ()
        self.run = _with_steps(run, [each for each in answers if each])
        self.requests = _requests(self.run, events or ())


def _most_relevant(run: Run) -> Sequence[Operation]:
    if len(run.operations) <= MAX_STEPS_CALLS:
        return run.operations
    # The operation that failed, and then the latest ones.
    worst = [run.failed_operation] if run.failed_operation else []
    return [*worst, *(each for each in run.operations[::-1] if each not in worst)][:MAX_STEPS_CALLS]


def _with_steps(run: Run, detailed: Sequence[Operation]) -> Run:
    """Return the operations as they were listed together, with the steps that were read later."""
    steps = {operation.id: operation.steps for operation in detailed}
    return Run([replace(each, steps=steps.get(each.id, ())) for each in run.operations])


def _requests(run: Run, newest_first: Sequence[Event]) -> list[Event]:
    """Return the events that record what was requested, the oldest first: those from before a
    worker took the first operation. Later ones are results."""
    taken = [step.started_at for step in run.first.steps if step.name == "picked_up"]
    taken_at = taken[0] if taken else None
    return [
        event
        for event in reversed(newest_first)
        if run.first.id in event.operation_ids
        and not event.type.startswith("operation.")
        and not (taken_at and event.at and event.at > taken_at)
    ]


def _retries(api: ManagementAPI, project_id: str, run: Run) -> Sequence[Operation]:
    if not run.can_be_retried or run.ended_at is None:
        return ()
    since = stamp(run.ended_at)
    return api.operations(project_id, limit=MAX_RETRIES, initiator="retry", since=since).items


def _page(
    request: ConsoleRequest,
    live_url: str,
    run: Run,
    read: tuple[Project, Sequence[Branch], Sequence[Endpoint]],
    details: _Details | None = None,
) -> tuple[dict[str, Any], Polling]:
    project, branches, endpoints = read
    existing = Existing.of(endpoints, branches)
    names = {branch.id: branch.name for branch in branches}
    events = details.requests if details else ()
    requests = [event_row(event, existing, names) for event in events]
    context = {
        "project": project,
        "row": RunRow(project.id, run),
        "run": run,
        "here": run_url(project.id, run),
        "waterfall": waterfall(run),
        "why": why_failed(run),
        "log": "\n".join(log_lines(run)),
        "things": things(project.id, run, names, existing),
        "asked": requests,
        "actor": _actor(run, requests),
        "retries": retries_by_run(project.id, run, details.retries if details else ()),
        "is_several": len(run.operations) > 1,
        # The idempotency key of a button, so that a double click acts only once.
        "once": new_once_token(),
    }
    return context, polling(request, live_url, run.operations[::-1])


def _actor(run: Run, requests: Sequence[EventRow]) -> Actor | None:
    """Return who began the run; from the event if possible, as that may have the address too."""
    actor = requests[0].event.actor if requests else None
    is_same = actor and run.initiator and actor.type == run.initiator.type
    return actor if is_same else run.initiator
