"""The pages that say how to connect through an endpoint: from which program, and with which role,
database and address."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.api.errors import APIError, Failure, Forbidden, NonsenseAnswer, OutOfDate, Unauthorized
from console.api.parallel import in_parallel, or_none
from console.api.resources.branches import Database
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.endpoints.connection_strings import LABELS, URL, Target, in_style
from console.forms.fields import OpenChoiceField, offer
from console.pages.problems import spell_out
from console.request import ConsoleRequest

# The address is the endpoint's own host name. The API's URI may have another, which always resolves
# and takes the endpoint's id as an option.
BY_NAME = "name"


class ConnectionForm(forms.Form):
    """How to connect. It is always usable: omitted or unknown choices have defaults."""

    style = OpenChoiceField(label="For", required=False)
    role = OpenChoiceField(label="Role", required=False)
    database = OpenChoiceField(label="Database", required=False)
    address = OpenChoiceField(label="Address", required=False)
    pooled = forms.BooleanField(label="Pooled", required=False)
    branch = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, data: Any, *, endpoint: Endpoint, roles: Sequence[str], databases: Sequence[Database]
    ) -> None:
        names = [database.name for database in databases]
        database = data.get("database") if data.get("database") in names else names[0]
        owner = next(one.owner_name for one in databases if one.name == database)
        usual = owner if owner in roles else roles[0]
        role = data.get("role") if data.get("role") in roles else usual
        chosen = {
            "role": role,
            "database": database,
            "style": data.get("style") if data.get("style") in LABELS else URL,
            "address": BY_NAME if data.get("address") == BY_NAME else "",
            "branch": endpoint.branch_id,
        }
        if data.get("pooled"):
            chosen["pooled"] = "on"
        super().__init__(chosen)
        offer(self, "style", LABELS.items())
        offer(self, "role", ((name, name) for name in roles))
        offer(self, "database", ((name, name) for name in names))
        self.endpoint = endpoint

    @property
    def chosen(self) -> Sequence[tuple[str, str]]:
        """The fields that ask for the same connection again, once the form is validated."""
        given = {**self.cleaned_data, "pooled": "on" if self.cleaned_data["pooled"] else ""}
        names = ("branch", "role", "database", "pooled", "style", "address")
        left_out = {name for name in ("pooled", "address") if not given[name]}
        return [(name, given[name]) for name in names if name not in left_out]

    @property
    def query(self) -> str:
        return urlencode(self.chosen)

    def string(self, uri: str, *, reveal: bool) -> str:
        """Write the connection that the API's `uri` leads to, with what was chosen."""
        chosen, target = self.cleaned_data, Target.read(uri)
        if chosen["address"] == BY_NAME and target.names_endpoint_by_option:
            target = target.at(
                self.endpoint.pooled_host if chosen["pooled"] else self.endpoint.host
            )
        return in_style(chosen["style"], target, reveal=reveal)

    def offer_addresses(self, uri: str) -> None:
        """Offer the addresses. The first is that of the API's `uri`, which always resolves. If that
        is the endpoint's own host name, there is no second one to choose."""
        found = Target.read(uri)
        if not (found.names_endpoint_by_option and self.endpoint.host):
            del self.fields["address"]
            return
        offer(
            self,
            "address",
            [
                ("", f"{found.host} (needs no DNS)"),
                (BY_NAME, f"{self.endpoint.host} (if the name resolves)"),
            ],
        )


def show(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    """Show the connection in the form asked for. Only the answer to a POST holds the password."""
    try:
        return _connection(request, project_id, endpoint_id)
    except Failure as problem:
        if request.htmx.target != "connect":
            raise
        # A page includes this part without a request of the user. The problem is shown in its
        # place.
        return render(request, "_connection.html", {"problem": problem})


def _connection(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    project, endpoint, branch_name, form = _read(request, project_id, endpoint_id)
    context: dict[str, Any] = {
        "project": project,
        "project_id": project_id,
        "branch_name": branch_name,
        "endpoint": endpoint,
    }
    if form is None:
        return render(request, _template(request), context)
    reveal = request.method == "POST"
    try:
        uri = _uri(request, project_id, form, password=reveal)
    except Forbidden as problem:
        # A read-only key may see the rest of the page, but no password.
        return render(request, _template(request), {**context, "refused": problem})
    context |= {
        "form": form,
        "reveal": reveal,
        "string": form.string(uri, reveal=reveal),
    }
    return render(request, _template(request), context)


@require_POST
def string(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    """Answer with the connection alone, with its password, for the copy button."""
    try:
        request.api.transport.require_current()
        *_, form = _read(request, project_id, endpoint_id)
        if form is None:
            return _text_response("The branch has no role or no database yet.", status=409)
        uri = _uri(request, project_id, form, password=True)
    except Unauthorized:
        words = "Nothing was copied: you are signed out. Reload the page to sign in."
        return _text_response(words, status=401)
    except OutOfDate:
        words = "Nothing was copied: you have signed in again. Reload the page and try again."
        return _text_response(words, status=409)
    except APIError as problem:
        return _text_response(spell_out(problem), status=problem.page_status)
    return _text_response(form.string(uri, reveal=True))


@require_safe
def through_branch(request: ConsoleRequest, project_id: str, branch_id: str = "") -> HttpResponse:
    """Redirect to the connection through a branch's endpoint. Without `branch_id`, that is the
    project's default branch or, if that has no endpoint, any."""
    project, endpoints, branches = in_parallel(
        lambda: request.api.project(project_id),
        lambda: request.api.endpoints(project_id),
        lambda: request.api.branches(project_id),
    )
    wanted = branch_id or next((branch.id for branch in branches if branch.default), "")
    found = [one for one in endpoints if one.branch_id == wanted]
    if not branch_id:
        found += endpoints
    if not found:
        context = {"project": project, "project_id": project_id, "branch_id": wanted}
        return render(request, _template(request), context)
    url = reverse("endpoint_connect", args=[project_id, found[0].id])
    return HttpResponseRedirect(f"{url}?branch={found[0].branch_id}")


def _template(request: ConsoleRequest) -> str:
    if not request.htmx:
        return "connect.html"
    return "_connect_dialog.html" if request.htmx.target == "dialog" else "_connection.html"


def _read(
    request: ConsoleRequest, project_id: str, endpoint_id: str
) -> tuple[Project | None, Endpoint, str, ConnectionForm | None]:
    """Read the project, the endpoint and its branch's name, and fill in the form. The project is
    None unless the whole page is requested, which names it. The branch's name is "" in a part of
    another page, which names it already. The form is None if there is nothing to choose."""
    api = request.api
    data = request.POST or request.GET
    # Every link to this page names the branch, so that the branch's roles and databases can be read
    # at the same time as the endpoint. If that is not its branch, they are read again.
    branch_id = data.get("branch", "")

    def name(branch_id: str) -> str:
        is_part = _template(request) == "_connection.html"
        return "" if is_part else api.branch(project_id, branch_id).name

    endpoint, project, roles, databases, branch_name = in_parallel(
        lambda: api.endpoint(project_id, endpoint_id),
        lambda: None if request.htmx else api.project(project_id),
        or_none(lambda: api.catalog.role_names(project_id, branch_id) if branch_id else None),
        or_none(lambda: api.catalog.databases(project_id, branch_id) if branch_id else None),
        or_none(lambda: name(branch_id) if branch_id else None),
    )
    is_missing = roles is None or databases is None or branch_name is None
    if is_missing or endpoint.branch_id != branch_id:
        roles, databases, branch_name = in_parallel(
            lambda: api.catalog.role_names(project_id, endpoint.branch_id),
            lambda: api.catalog.databases(project_id, endpoint.branch_id),
            lambda: name(endpoint.branch_id),
        )
    if not (roles and databases):
        return project, endpoint, branch_name or "", None
    form = ConnectionForm(data, endpoint=endpoint, roles=roles, databases=databases)
    form.is_valid()
    return project, endpoint, branch_name or "", form


def _uri(request: ConsoleRequest, project_id: str, form: ConnectionForm, *, password: bool) -> str:
    """Read the connection URI, and offer its addresses in the form. Perch can leave the password
    out; it then records no event that the password was revealed."""
    uri = request.api.connection_uri(
        project_id,
        branch_id=form.endpoint.branch_id,
        endpoint_id=form.endpoint.id,
        role=form.cleaned_data["role"],
        database=form.cleaned_data["database"],
        pooled=form.cleaned_data["pooled"],
        password=password,
    )
    try:
        form.offer_addresses(uri)
    except ValueError as error:
        raise NonsenseAnswer("The response is not a connection URI.") from error
    return uri


def _text_response(words: str, *, status: int = 200) -> HttpResponse:
    return HttpResponse(words, status=status, content_type="text/plain; charset=utf-8")
