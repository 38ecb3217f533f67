"""The forms for a branch's roles and databases. Their names are in the query, because they may hold
characters that no path can."""

from django.http import HttpResponse
from django.urls import reverse

from console.api.errors import NotFound
from console.api.fields import isolated
from console.api.parallel import in_parallel, part
from console.api.resources.branches import Database
from console.branches.forms import DatabaseForm, RoleForm
from console.forms.api_requests import body_of
from console.forms.fields import ConfirmForm
from console.forms.losses import Loss
from console.pages.problems import problems_beside
from console.pages.responses import (
    FormPage,
    choices,
    done,
    show_confirmation,
    show_dialog,
)
from console.request import ConsoleRequest

KEEP_IT = (
    "Copy it now and store it safely. It can be shown again only if the project stores passwords."
)
SAME_ON_COPIES = (
    "Branches that are created from this one get the same password, unless it is protected."
)


def create_role(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branch", args=[project_id, branch_id])
    form = RoleForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            name = form.cleaned_data["name"]
            body = body_of(form, "role_create")
            password = request.api.catalog.create_role(project_id, branch_id, body)
            return _show_password(request, url, name, password, is_new=True)
    return FormPage(
        title="Create role",
        intro="The password is shown when the role has been created.",
        back=url,
    ).show(request, form)


def reveal_password(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Show the password after the user has pressed a button, so that only the response to a POST
    request contains it."""
    name = isolated(request.GET.get("name", ""))
    page = FormPage(
        title=f"Password of {name}",
        intro="Anyone who has this password can connect as the role.",
        submit="Reveal password",
        back=reverse("branch", args=[project_id, branch_id]),
    )

    def reveal() -> HttpResponse:
        shown = request.api.catalog.reveal_password(project_id, branch_id, name)
        return _show_password(request, page.back, name, shown, is_new=False)

    return show_confirmation(request, lambda: page, reveal)


def reset_password(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    name = isolated(request.GET.get("name", ""))
    page = FormPage(
        title=f"Reset password of {name}",
        intro=f"The current password stops working and the connections of {name} are closed. "
        "The new password is shown afterwards.",
        submit="Reset password",
        danger=True,
        back=reverse("branch", args=[project_id, branch_id]),
    )

    def renew() -> HttpResponse:
        new = request.api.catalog.reset_password(project_id, branch_id, name)
        return _show_password(request, page.back, name, new, is_new=True)

    return show_confirmation(request, lambda: page, renew)


def delete_role(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    name = isolated(request.GET.get("name", ""))
    url = reverse("branch", args=[project_id, branch_id])

    def remove() -> HttpResponse:
        request.api.catalog.delete_role(project_id, branch_id, name)
        return done(request, url, f"Role {name} is deleted.")

    def page() -> FormPage:
        branch_name, owned = "the branch", list[str]()
        if request.method != "POST":
            branch, databases = in_parallel(
                lambda: request.api.branch(project_id, branch_id),
                part(lambda: request.api.catalog.databases(project_id, branch_id)),
            )
            branch_name = branch.name
            owned = [f"{one.name}" for one in databases.items if one.owner_name == name]
        are_many = len(owned) > 1
        return FormPage(
            title=f"Delete role {name}",
            intro="" if owned else f"On {branch_name}, this permanently deletes:",
            submit="Delete role",
            danger=True,
            back=url,
            blocked=f"{name} owns the database{'s' * are_many} {', '.join(owned)}. "
            f"Give {'these databases' if are_many else 'the database'} another owner first."
            if owned
            else "",
            losses=()
            if owned
            else (
                Loss("Password", f"nobody can connect as {name}"),
                Loss("Connections", "closed at once"),
            ),
        )

    return show_confirmation(request, page, remove)


def _show_password(
    request: ConsoleRequest, url: str, name: str, shown: str, *, is_new: bool
) -> HttpResponse:
    context = {
        "words": KEEP_IT if is_new else SAME_ON_COPIES,
        "what": "password",
        "secret": shown,
        "is_shown_once": is_new,
        "back": url,
    }
    title = f"{'New password' if is_new else 'Password'} of {name}"
    # No other answer than that to a POST may hold the password.
    return show_dialog(request, "_secret.html", context, title=title)


def create_database(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branch", args=[project_id, branch_id])
    form = DatabaseForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            body = body_of(form, "database_create")
            request.api.catalog.create_database(project_id, branch_id, body)
            return done(request, url, f"Started creating database {form.cleaned_data['name']}.")
    owners = choices(request, lambda: request.api.catalog.role_names(project_id, branch_id))
    form.offer_owners(owners)
    return FormPage(
        title="Create database",
        back=url,
        blocked=""
        if owners or form.is_bound
        else "The branch has no role that can own a database. Create a role first.",
    ).show(request, form)


def edit_database(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
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
        lambda: choices(request, lambda: request.api.catalog.role_names(project_id, branch_id)),
        lambda: choices(request, lambda: [_database(request, project_id, branch_id, name)]),
    )
    form.initial["name"] = name
    form.offer_owners(owners, found[0].owner_name if found else "")
    return FormPage(
        title=f"Edit database {name}",
        intro="Renaming closes the connections to the database.",
        submit="Save",
        back=url,
    ).show(request, form)


def delete_database(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
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
    return FormPage(
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
    ).show(request, form)


def _database(request: ConsoleRequest, project_id: str, branch_id: str, name: str) -> Database:
    """Return the database of that name. Raises NotFound."""
    for database in request.api.catalog.databases(project_id, branch_id):
        if database.name == name:
            return database
    raise NotFound("database not found", status=404)
