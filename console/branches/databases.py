"""The forms for a branch's databases: create, rename, change the owner, delete.

The database's name is in the query, because it may hold characters that no path can.
"""

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.api.errors import NotFound
from console.api.fields import isolated
from console.api.parallel import in_parallel
from console.api.resources.branches import Database
from console.branches.forms import DatabaseForm
from console.forms.api_requests import body_of
from console.forms.fields import ConfirmForm
from console.forms.losses import Loss
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, done, show_form
from console.request import ConsoleRequest


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branch", args=[project_id, branch_id])
    form = DatabaseForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            body = body_of(form, "database_create")
            request.api.catalog.create_database(project_id, branch_id, body)
            return done(request, url, f"Started creating database {form.cleaned_data['name']}.")
    owners = choices(request, lambda: request.api.roles(project_id, branch_id))
    form.offer_owners(owners)
    page = FormPage(
        title="Create database",
        submit="Create database",
        back=url,
        blocked=""
        if owners or form.is_bound
        else "The branch has no role that can own a database. Create a role first.",
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    name = isolated(request.GET.get("name", ""))
    url = reverse("branch", args=[project_id, branch_id])
    form = DatabaseForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            database = _database(request, project_id, branch_id, name)
            changes = form.changes(database)
            if changes:
                request.api.catalog.update_database(project_id, branch_id, name, changes)
            words = f"Started changing database {name}." if changes else "Nothing was changed."
            return done(request, url, words)
    owners, found = in_parallel(
        lambda: choices(request, lambda: request.api.roles(project_id, branch_id)),
        lambda: choices(request, lambda: [_database(request, project_id, branch_id, name)]),
    )
    form.initial["name"] = name
    form.offer_owners(owners, found[0].owner_name if found else "")
    page = FormPage(
        title=f"Edit database {name}",
        intro="Renaming closes the connections to the database.",
        submit="Save",
        back=url,
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    name = isolated(request.GET.get("name", ""))
    url = reverse("branch", args=[project_id, branch_id])
    form = ConfirmForm(request.POST or None, expected=name, what="name")
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.catalog.delete_database(project_id, branch_id, name)
            return done(request, url, f"Database {name} is deleted.")
    branch_name = "the branch"
    if request.method != "POST":
        # A page must not ask to confirm the deletion of a database that does not exist.
        branch, _ = in_parallel(
            lambda: request.api.branch(project_id, branch_id),
            lambda: _database(request, project_id, branch_id, name),
        )
        branch_name = branch.name
    page = FormPage(
        title=f"Delete database {name}",
        intro=f"On {branch_name}, this permanently deletes:",
        submit="Delete database",
        danger=True,
        back=url,
        losses=(
            Loss("Tables", "with their data"),
            Loss("Connections", "closed at once"),
            Loss("Owner", "kept, like all other roles and databases", stays=True),
        ),
    )
    return show_form(request, form, page)


def _database(request: ConsoleRequest, project_id: str, branch_id: str, name: str) -> Database:
    """Return the database of that name. Raises NotFound."""
    for database in request.api.databases(project_id, branch_id):
        if database.name == name:
            return database
    raise NotFound("database not found", status=404)
