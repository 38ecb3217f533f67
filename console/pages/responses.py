"""How views answer: with a form, with a change made, or with a problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.encoding import iri_to_uri

from console.api.errors import APIError, Failure
from console.api.parallel import in_parallel, or_none
from console.forms.api_requests import curl
from console.forms.fields import AS_CURL
from console.forms.losses import Loss
from console.pages.addresses import back
from console.pages.problems import problems_beside, spell_out, translate_message
from console.request import ConsoleRequest
from console.sign_in import sessions

READ_ONLY = (
    "You are signed in with a read-only API key: it can look at all but passwords and the rows of "
    "tables, and change nothing."
)
# The pages whose forms concern the whole account, by the beginning of the names of their URLs.
ACCOUNT_VIEWS = ("project_create", "project_delete", "api_key_", "webhook_")


def key_restriction(request: ConsoleRequest) -> str:
    """Return why the key cannot use the form at this address; "" if it may be able to."""
    account = sessions.present_account(request)
    if account.read_only:
        return READ_ONLY
    only, match = account.project_id, request.resolver_match
    if only and match and (match.url_name or "").startswith(ACCOUNT_VIEWS):
        return f"You are signed in with a key that is limited to the project {only}."
    return ""


T = TypeVar("T")


@dataclass(frozen=True)
class FormPage:
    """What is shown around a form, on a page of its own or in a dialog."""

    title: str
    back: str
    # The label of the button that sends the form; by default the title.
    submit: str = ""
    intro: str = ""
    # The label of the button that leaves the form without sending it.
    dismiss: str = "Cancel"
    # The button looks dangerous, because the change cannot be undone.
    danger: bool = False
    # Why the form cannot be used, and what to do first; "" if it can be used.
    blocked: str = ""
    # What is lost, if something is deleted or replaced.
    losses: Sequence[Loss] = ()
    # The form changes nothing in the account, so that a read-only key may use it.
    is_reading: bool = False

    def show(self, request: ConsoleRequest, form: forms.Form) -> HttpResponse:
        """Show the form: on a page of its own or, for htmx, as the content of the dialog. With it
        comes the command for the request that it would have sent, if it was sent by the button for
        that."""
        template = "_form.html" if request.htmx else "form.html"
        page = self
        if not (self.blocked or self.is_reading or form.is_bound):
            page = replace(self, blocked=key_restriction(request))
        status = 422 if form.errors else 200
        context = {"form": form, "page": page, "heading": heading(request)}
        # Public pages have no API.
        api = getattr(request, "api", None)
        if api and api.transport.shown:
            context["curl"] = curl(api.transport.shown, api.server.url)
        if not request.htmx:
            context["crumbs"] = crumbs(request)
        return render(request, template, context, status=status)


def crumbs(request: ConsoleRequest) -> list[tuple[str, str]]:
    """Return the pages above a form that is a page of its own: the label and the address of each.
    A name that the API does not tell is an id."""
    match = request.resolver_match
    if match is None or not sessions.present(request):
        return []
    name, ids = match.url_name or "", match.kwargs
    for of, label, url in (
        ("webhook", "Webhooks", "webhooks"),
        ("api_key", "API keys", "api_keys"),
        ("host", "Service status", "status"),
    ):
        if name.startswith(of):
            return [(label, reverse(url))]
    found = [("Projects", reverse("dashboard"))]
    project_id, branch_id = ids.get("project_id", ""), ids.get("branch_id", "")
    endpoint_id = ids.get("endpoint_id", "")
    project, branch = in_parallel(
        or_none(lambda: request.api.project(project_id) if project_id else None),
        or_none(lambda: request.api.branch(project_id, branch_id) if branch_id else None),
    )
    if project_id:
        label = project.name if project else project_id
        found.append((label, reverse("project", args=[project_id])))
    if endpoint_id:
        found.append((endpoint_id, reverse("endpoint", args=[project_id, endpoint_id])))
    if branch_id:
        label = branch.name if branch else branch_id
        found.append((label, reverse("branch", args=[project_id, branch_id])))
    return found


def show_confirmation(
    request: ConsoleRequest, page: Callable[[], FormPage], do: Callable[[], HttpResponse]
) -> HttpResponse:
    """Ask for confirmation. `page` makes what is around the form, and `do` makes the change."""
    # It has no fields: it only confirms an action.
    form = forms.Form(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            return do()
    return page().show(request, form)


def heading(request: ConsoleRequest) -> str:
    """Return the element for a form's title: h2 in a dialog, as the page behind it has the h1. htmx
    also sends forms that are on a page of their own; those keep h1."""
    at = urlsplit(request.htmx.current_url_abs_path or "").path if request.htmx else ""
    return "h1" if not request.htmx or at == request.path else "h2"


def show_dialog(
    request: ConsoleRequest,
    template: str,
    context: Mapping[str, object],
    *,
    title: str,
    status: int = 200,
) -> HttpResponse:
    """Show a template: for htmx, as the content of the dialog; else on a page of its own."""
    shown = {"title": title, **context, "content": template, "heading": heading(request)}
    return render(request, template if request.htmx else "dialog.html", shown, status=status)


def choices(request: ConsoleRequest, call: Callable[[], list[T]]) -> list[T]:
    """Return the choices that a form offers. If they cannot be read, a form that was sent does
    without them, so that what was typed is not lost. Otherwise the failure is raised."""
    try:
        return call()
    except APIError:
        if request.method == "POST":
            return []
        raise


def done(
    request: ConsoleRequest, url: str, message: str = "", *, is_live: bool = True
) -> HttpResponse:
    """Answer after a change: go to `url` or, if the browser is there, renew its live region."""
    if message:
        messages.success(request, message)
    if not request.htmx:
        return HttpResponseRedirect(url)
    is_there = urlsplit(request.htmx.current_url_abs_path or "").path == urlsplit(url).path
    # Then the form has found nothing to send. It stays open, and the message says so.
    stays = bool(message) and AS_CURL in request.POST
    if not (stays or (is_there and is_live)):
        return HttpResponse(headers={"HX-Redirect": iri_to_uri(url)})
    answer = render(request, "_notices.html")
    answer["HX-Reswap"] = "none"
    if not stays:
        answer["HX-Trigger"] = "perch:changed"
    return answer


def act(
    request: ConsoleRequest, call: Callable[[], object], *, otherwise: str, message: str = ""
) -> HttpResponse:
    """Do what a button asks for, and go back to its page. A refusal is shown there."""
    try:
        call()
    except Failure as problem:
        messages.error(request, translate_message(spell_out(problem)))
        return done(request, back(request, otherwise))
    return done(request, back(request, otherwise), message)
