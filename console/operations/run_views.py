"""A run's page: the operations of one chain with their steps, why they failed, and their log. And
cancelling and retrying a single operation, or all of a chain."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.text import capfirst
from django.views.decorators.http import require_POST, require_safe

from console.api.errors import Failure, NotFound
from console.api.fields import stamp
from console.api.management_api import ManagementAPI, Target
from console.api.parallel import each_or_none, in_parallel, or_none
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Actor, Event, Operation
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
from console.pages.addresses import Existing, back
from console.pages.live_regions import Shown, page_and_region, polling
from console.pages.problems import spell_out
from console.pages.responses import FormPage, done, show_confirmation
from console.pages.statuses import is_unfinished, operation_name, operation_status
from console.request import ConsoleRequest

# The operations of a chain that are shown. A move of a project has two for each active endpoint.
MAX_CHAIN_OPERATIONS = 1_000
# More than there are retries of one run.
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


def _alone(request: ConsoleRequest, project_id: str, operation_id: str) -> Shown:
    api = request.api
    operation, branches, project, endpoints = in_parallel(
        lambda: _operation(api, project_id, operation_id),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
        lambda: api.endpoints(project_id),
    )
    return _page(request, Run([operation]), (project, branches, endpoints))


_show_alone, operation_live = page_and_region(_alone, "run.html", "_run.html")


def run_of_chain(api: ManagementAPI, project_id: str, chain_id: str) -> Run:
    """Read the last MAX_CHAIN_OPERATIONS operations of a chain. Raises NotFound."""
    limit, cursor = MAX_CHAIN_OPERATIONS, ""
    found: dict[str, Operation] = {}
    while len(found) <= MAX_CHAIN_OPERATIONS:
        known = len(found)
        page = api.operations(project_id, limit=limit, cursor=cursor, chain_id=chain_id)
        found |= {each.id: each for each in page.items if each.chain_id == chain_id}
        cursor = page.cursor
        # A server that ignores the filter lists all operations, and may return pages without end.
        if not cursor or len(found) - known < len(page.items):
            break
    if not found:
        raise NotFound("There is no such run")
    members = [*found.values()][:MAX_CHAIN_OPERATIONS]
    return Run(members[::-1], is_cut=len(members) < len(found))


def _of_chain(request: ConsoleRequest, project_id: str, chain_id: str) -> Shown:
    api = request.api
    run, project, branches, endpoints = in_parallel(
        lambda: run_of_chain(api, project_id, chain_id),
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
    )
    run, requested, retries = _details(api, project_id, run)
    return _page(request, run, (project, branches, endpoints), requested, retries)


show = page_and_region(_of_chain, "run.html", "_run.html")


def _details(
    api: ManagementAPI, project_id: str, run: Run
) -> tuple[Run, Sequence[Event], Sequence[Operation]]:
    """Return the run with its steps, what was requested, and its retries, all read at the same time
    once its operations are known. What cannot be read is left out, because the page is worth more
    than an error page."""
    calls: list[Callable[[], Any]] = [
        lambda: api.events(project_id, limit=MAX_EVENTS, operation_id=run.first.id).items,
        partial(_retries, api, project_id, run),
        *(partial(api.operation, project_id, operation.id) for operation in _most_relevant(run)),
    ]
    events, retries, *answers = each_or_none(lambda call: call(), calls)
    # As they were listed together, with the steps that were read later.
    steps = {each.id: each.steps for each in answers if each}
    members = [replace(each, steps=steps.get(each.id, ())) for each in run.operations]
    run = replace(run, operations=members)
    return run, _requests(run, events or ()), retries or ()


def _most_relevant(run: Run) -> Sequence[Operation]:
    if len(run.operations) <= MAX_STEPS_CALLS:
        return run.operations
    # The operation that failed, the first one, and then the latest ones.
    worst = [run.failed_operation] if run.failed_operation else []
    ranked = {each.id: each for each in (*worst, run.first, *run.operations[::-1])}
    return [*ranked.values()][:MAX_STEPS_CALLS]


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
    run: Run,
    read: tuple[Project, Sequence[Branch], Sequence[Endpoint]],
    requested: Sequence[Event] = (),
    retries: Sequence[Operation] = (),
) -> Shown:
    project, branches, endpoints = read
    existing = Existing.of(endpoints, branches)
    names = {branch.id: branch.name for branch in branches}
    requests = [event_row(event, existing, names) for event in requested]
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
        "retries": retries_by_run(project.id, run, retries),
        "is_several": len(run.operations) > 1,
        # The idempotency key of a button, so that a double click acts only once.
        "once": new_once_token(),
    }
    return context, polling(request, run.operations[::-1])


def _actor(run: Run, requests: Sequence[EventRow]) -> Actor | None:
    """Return who began the run; from the event if possible, as that may have the address too."""
    actor, initiator = requests[0].event.actor if requests else None, run.first.initiator
    is_same = actor and initiator and actor.type == initiator.type
    return actor if is_same else initiator


WHAT_CANCELLING_DOES = (
    "Waiting work is not started. Running work stops at the next safe point, and "
    "incomplete results are removed. An endpoint goes on as it was; a branch whose creation is "
    "cancelled has no data until it is retried or its endpoint is started."
)


def cancel(request: ConsoleRequest, project_id: str, operation_id: str) -> HttpResponse:
    blocked = ""
    name = "the operation"
    if request.method != "POST":
        operation = request.api.operation(project_id, operation_id)
        name = f"“{operation_name(operation)}”"
        if not is_unfinished(operation):
            blocked = f"{name} has already ended: {operation_status(operation).label}."
    page = FormPage(
        title="Cancel operation",
        intro=""
        if blocked
        else f"{WHAT_CANCELLING_DOES} Operations of the same run that wait for {name} are "
        "cancelled too.",
        dismiss="Go back",
        back=back(request, reverse("operation", args=[project_id, operation_id])),
        blocked=blocked,
    )
    return _confirm_cancel(request, project_id, ("operations", operation_id), page)


def cancel_chain(request: ConsoleRequest, project_id: str, chain_id: str) -> HttpResponse:
    name, blocked = "this run", ""
    if request.method != "POST":
        run = or_none(lambda: run_of_chain(request.api, project_id, chain_id))()
        if run:
            name = f"“{run.title}”"
        if run and not run.is_unfinished:
            blocked = f"{capfirst(name)} has already ended: {run.status.label}."
    page = FormPage(
        title="Cancel run",
        intro="" if blocked else f"All operations of {name} are cancelled. {WHAT_CANCELLING_DOES}",
        submit="Cancel all",
        dismiss="Go back",
        back=back(request, reverse("run", args=[project_id, chain_id])),
        blocked=blocked,
    )
    return _confirm_cancel(request, project_id, ("chains", chain_id), page)


def _confirm_cancel(
    request: ConsoleRequest, project_id: str, target: Target, page: FormPage
) -> HttpResponse:
    def go_ahead() -> HttpResponse:
        concerned = request.api.steer(project_id, target, "cancel")
        return done(request, page.back, _cancelled_message(concerned))

    return show_confirmation(request, lambda: page, go_ahead)


def _cancelled_message(concerned: Sequence[Operation]) -> str:
    stopping = [operation for operation in concerned if is_unfinished(operation)]
    count = len(concerned)
    if stopping:
        return f"{operation_name(stopping[0])} is being stopped."
    return "The operation is cancelled." if count == 1 else f"{count} operations are cancelled."


@require_POST
def retry(
    request: ConsoleRequest, project_id: str, operation_id: str = "", chain_id: str = ""
) -> HttpResponse:
    """Retry an operation, or all of a chain, and go to the new run. A refusal is shown on the page
    of the button."""
    target: Target = ("chains", chain_id) if chain_id else ("operations", operation_id)
    otherwise = reverse("run" if chain_id else "operation", args=[project_id, target[1]])
    try:
        anew = request.api.steer(project_id, target, "retry")
    except Failure as problem:
        messages.error(request, spell_out(problem))
        return done(request, back(request, otherwise))
    url = run_url(project_id, Run(anew)) if anew else otherwise
    return done(request, url or otherwise, "Retrying as a new run.")
