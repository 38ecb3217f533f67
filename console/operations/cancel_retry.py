"""Cancelling and retrying: a single operation, or all operations of a chain."""

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.utils.text import capfirst
from django.views.decorators.http import require_http_methods, require_POST

from console.api.errors import APIError, Unauthorized
from console.api.management_api import Target
from console.api.parallel import or_none
from console.api.resources.operations import Operation
from console.operations.run_rows import run_url
from console.operations.run_views import run_of_chain
from console.operations.runs import Run
from console.pages.addresses import back
from console.pages.problems import spell_out
from console.pages.responses import FormPage, done, show_confirmation
from console.pages.statuses import is_unfinished, operation_name, operation_status
from console.request import ConsoleRequest

WHAT_CANCELLING_DOES = (
    "Waiting work is not started. Running work stops at the next safe point, and "
    "incomplete results are removed. An endpoint goes on as it was; a branch whose creation is "
    "cancelled has no data until it is retried or its endpoint is started."
)


@require_http_methods(["GET", "HEAD", "POST"])
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
        submit="Cancel operation",
        dismiss="Go back",
        back=back(request, reverse("operation", args=[project_id, operation_id])),
        blocked=blocked,
    )
    return _confirm_cancel(request, project_id, ("operations", operation_id), page)


@require_http_methods(["GET", "HEAD", "POST"])
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
def retry(request: ConsoleRequest, project_id: str, operation_id: str) -> HttpResponse:
    url = reverse("operation", args=[project_id, operation_id])
    return _retry(request, project_id, ("operations", operation_id), otherwise=url)


@require_POST
def retry_chain(request: ConsoleRequest, project_id: str, chain_id: str) -> HttpResponse:
    url = reverse("run", args=[project_id, chain_id])
    return _retry(request, project_id, ("chains", chain_id), otherwise=url)


def _retry(
    request: ConsoleRequest, project_id: str, target: Target, *, otherwise: str
) -> HttpResponse:
    """Retry, and go to the new run. A refusal is shown on the page of the button."""
    try:
        anew = request.api.steer(project_id, target, "retry")
    except Unauthorized:
        raise
    except APIError as problem:
        messages.error(request, spell_out(problem))
        return done(request, back(request, otherwise))
    url = run_url(project_id, Run(anew)) if anew else otherwise
    return done(request, url or otherwise, "Retrying as a new run.")
