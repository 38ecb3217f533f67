"""The forms for a branch's roles: create, delete, and show or reset the password.

The role's name is a query parameter, because it may contain characters that are not possible in a
URL's path.
"""

from collections.abc import Sequence

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.api.fields import isolated
from console.api.parallel import in_parallel, part
from console.branches.forms import RoleForm
from console.forms.api_requests import body_of
from console.forms.losses import Loss
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, done, show_confirmation, show_form, show_secret
from console.request import ConsoleRequest

KEEP_IT = (
    "Copy it now and store it safely. It can be shown again only if the project stores passwords."
)
SAME_ON_COPIES = (
    "Branches that are created from this one get the same password, unless it is protected."
)


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    form = RoleForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            name = form.cleaned_data["name"]
            body = body_of(form, "role_create")
            password = request.api.catalog.create_role(project_id, branch_id, body)
            return _show(request, project_id, branch_id, name, password, is_new=True)
    page = FormPage(
        title="Create role",
        intro="The password is shown when the role has been created.",
        submit="Create role",
        back=reverse("branch", args=[project_id, branch_id]),
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def password(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
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
        return _show(request, project_id, branch_id, name, shown, is_new=False)

    return show_confirmation(request, lambda: page, reveal)


@require_http_methods(["GET", "HEAD", "POST"])
def reset(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
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
        return _show(request, project_id, branch_id, name, new, is_new=True)

    return show_confirmation(request, lambda: page, renew)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    name = isolated(request.GET.get("name", ""))
    url = reverse("branch", args=[project_id, branch_id])

    def remove() -> HttpResponse:
        request.api.catalog.delete_role(project_id, branch_id, name)
        return done(request, url, f"Role {name} is deleted.")

    def page() -> FormPage:
        if request.method == "POST":
            return _deletion_page(name, "the branch", url)
        branch, databases = in_parallel(
            lambda: request.api.branch(project_id, branch_id),
            part(lambda: request.api.catalog.databases(project_id, branch_id)),
        )
        owned = [f"{one.name}" for one in databases.items if one.owner_name == name]
        return _deletion_page(name, branch.name, url, owned)

    return show_confirmation(request, page, remove)


def _deletion_page(name: str, branch_name: str, url: str, owned: Sequence[str] = ()) -> FormPage:
    if owned:
        are_many = len(owned) > 1
        return FormPage(
            title=f"Delete role {name}",
            submit="Delete role",
            back=url,
            blocked=f"{name} owns the database{'s' * are_many} {', '.join(owned)}. "
            f"Give {'these databases' if are_many else 'the database'} another owner first.",
        )
    return FormPage(
        title=f"Delete role {name}",
        intro=f"On {branch_name}, this permanently deletes:",
        submit="Delete role",
        danger=True,
        back=url,
        losses=(
            Loss("Password", f"nobody can connect as {name}"),
            Loss("Connections", "closed at once"),
        ),
    )


def _show(
    request: ConsoleRequest,
    project_id: str,
    branch_id: str,
    name: str,
    shown: str,
    *,
    is_new: bool,
) -> HttpResponse:
    context = {
        "title": f"{'New password' if is_new else 'Password'} of {name}",
        "words": KEEP_IT if is_new else SAME_ON_COPIES,
        "what": "password",
        "secret": shown,
        "is_shown_once": is_new,
        "back": reverse("branch", args=[project_id, branch_id]),
    }
    return show_secret(request, "_secret.html", context)
