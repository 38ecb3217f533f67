"""How to connect through an endpoint."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from console.api_errors import Forbidden, NonsenseAnswer
from console.connection_strings import LABELS, URL, Target, in_style
from console.forms import ConnectionForm
from console.management_api import side_by_side
from console.request import ConsoleRequest


@require_http_methods(["GET", "HEAD", "POST"])
def show(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    """The connection in the form asked for. Only a POST's answer holds the password."""
    api = request.api
    endpoint, project = side_by_side(
        lambda: api.endpoint(project_id, endpoint_id), lambda: api.project(project_id)
    )
    roles, databases = side_by_side(
        lambda: api.roles(project_id, endpoint.branch_id),
        lambda: api.databases(project_id, endpoint.branch_id),
    )
    context = {"project": project, "endpoint": endpoint}
    template = "_connect.html" if request.htmx else "connect.html"
    if not (roles and databases):
        return render(request, template, context)
    form = ConnectionForm(request.POST or request.GET, roles=roles, databases=databases)
    form.is_valid()
    chosen = form.chosen()
    try:
        uri = api.connection_uri(
            project_id,
            branch_id=endpoint.branch_id,
            endpoint_id=endpoint_id,
            role=chosen.role,
            database=chosen.database,
            pooled=chosen.pooled,
        )
    except Forbidden as problem:
        # A key that only reads may see the rest of the page, and no password.
        return render(request, template, {**context, "refused": problem})
    try:
        target = Target.read(uri)
    except ValueError as error:
        raise NonsenseAnswer("The answer is no connection URI.") from error
    shown = chosen.style if chosen.style in LABELS else URL
    reveal = request.method == "POST"
    context |= {
        "form": form,
        "chosen": chosen,
        "reveal": reveal,
        "string": in_style(shown, target, reveal=reveal),
    }
    return render(request, template, context)
