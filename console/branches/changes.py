"""The forms that change a branch: its name, expiry, protection and data; and its deletion."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.utils.timezone import localtime
from django.views.decorators.http import require_POST

from console.api.errors import NotFound
from console.api.parallel import in_parallel, or_none, part
from console.api.resources.branches import Branch
from console.branches.forms import ResetForm, RestoreForm, name_list
from console.forms import losses
from console.forms.api_requests import body_of
from console.forms.fields import ConfirmForm, LifetimeFields, RenameForm
from console.pages.addresses import back
from console.pages.listing import by_name
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, act, choices, done, show_confirmation
from console.request import ConsoleRequest

WHAT_A_RESTORE_DOES = (
    "The branch keeps its id, name, endpoint and host. Open connections are "
    "closed. Roles and passwords become those of {}."
)

NO_PARENT = "This branch has no parent. Restore it from another branch instead."
NO_OTHER = "There is no other branch to restore from."


def rename(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = _page(request, project_id, branch_id)
    form = RenameForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            request.api.branching.update(project_id, branch_id, body_of(form, "branch_rename"))
            return done(request, url, f"Branch renamed to {form.cleaned_data['name']}.")
    if request.method != "POST":
        form.initial["name"] = request.api.branch(project_id, branch_id).name
    return FormPage(title="Rename branch", submit="Rename", back=url).show(request, form)


def expiry(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = _page(request, project_id, branch_id)
    form = LifetimeFields(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "lifetime"):
            end = form.expires_at
            request.api.branching.update(project_id, branch_id, body_of(form, "branch_expiry"))
            words = (
                f"The branch expires at {localtime(end):%Y-%m-%d %H:%M %Z}."
                if end
                else "The branch does not expire."
            )
            return done(request, url, words)
    name, blocked = "it", ""
    if request.method != "POST":
        branch, children = _branch_and_children(request.api.branches(project_id), branch_id)
        form.initial.update(form.initial_of(branch.expires_at))
        name = branch.name
        if branch.expires_at is None and (why := _deletion_refusal(branch, children)):
            blocked = f"A branch that cannot be deleted cannot expire. {why}"
    return FormPage(
        title="Branch expiry",
        intro=f"When it expires, {name} is deleted with its endpoint, databases and data.",
        submit="Save",
        back=url,
        blocked=blocked,
    ).show(request, form)


@require_POST
def protection(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    on = request.POST.get("to") == "on"
    return act(
        request,
        lambda: request.api.branching.update(project_id, branch_id, {"branch": {"protected": on}}),
        otherwise=reverse("branch", args=[project_id, branch_id]),
        message="Branch protection is on." if on else "Branch protection is off.",
    )


def set_default(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = _page(request, project_id, branch_id)

    def go_ahead() -> HttpResponse:
        request.api.branching.set_default(project_id, branch_id)
        return done(request, url, "Default branch changed.")

    def page() -> FormPage:
        branches = choices(request, lambda: request.api.branches(project_id))
        branch, _ = with_children(request, branches, branch_id)
        name = branch.name if branch else "the branch"
        former = next((f" instead of {one.name}" for one in branches if one.default), "")
        return FormPage(
            title=f"Set {name} as default",
            intro=f"{name} becomes the project's default branch{former}. Clients that name no "
            "branch use the default branch, and it cannot be deleted.",
            submit="Set as default",
            back=url,
        )

    return show_confirmation(request, page, go_ahead)


def reset(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Replace the branch's data with its parent's."""
    url = _page(request, project_id, branch_id)
    form = ResetForm(request.POST if request.method == "POST" else None)
    branches = choices(request, lambda: request.api.branches(project_id))
    branch, children = with_children(request, branches, branch_id)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "preserve_under_name"):
            # If the list of branches could not be read, read the branch alone.
            source_id = (branch or request.api.branch(project_id, branch_id)).parent_id
            body = body_of(form, "branch_reset") | {"source_branch_id": source_id}
            return replace_data(request, project_id, branch_id, body, url, "resetting")
    names = {one.id: one.name for one in branches}
    if branch and children:
        form.require_name(branch, children)
    parent_name = names.get(branch.parent_id, "") if branch else ""
    name, parent = branch.name if branch else "branch", parent_name or "its parent"
    return FormPage(
        title=f"Reset {name} from {parent}",
        intro=f"The data of {branch.name if branch else 'the branch'} is replaced by the "
        f"current data of {parent}. {WHAT_A_RESTORE_DOES.format(parent)}",
        submit="Reset branch",
        danger=True,
        back=url,
        blocked="" if form.is_bound else replacement_refusal(branch, NO_PARENT, parent_name),
    ).show(request, form)


def restore(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Replace the branch's data with another branch's."""
    url = _page(request, project_id, branch_id)
    form = RestoreForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "preserve_under_name"):
            body = body_of(form, "branch_restore")
            return replace_data(request, project_id, branch_id, body, url)
    branches = choices(request, lambda: request.api.branches(project_id))
    branch, children = with_children(request, branches, branch_id)
    form.offer_sources(branches, branch_id)
    if branch and children:
        form.require_name(branch, children)
    return FormPage(
        title=f"Restore {branch.name if branch else 'branch'} from another branch",
        intro=f"The data of {branch.name if branch else 'the branch'} is replaced by the "
        "current data of the other branch, which becomes its parent. "
        f"{WHAT_A_RESTORE_DOES.format('the other branch')}",
        submit="Restore branch",
        danger=True,
        back=url,
        blocked="" if form.is_bound else replacement_refusal(branch, NO_OTHER, len(branches) > 1),
    ).show(request, form)


def replacement_refusal(branch: Branch | None, without_source: str, has_source: object) -> str:
    """Return why its data cannot be replaced, "" if it can; `without_source` if none could be its
    source."""
    if branch and branch.protected:
        return "This branch is protected. Turn off protection first."
    return "" if has_source else without_source


def replace_data(
    request: ConsoleRequest,
    project_id: str,
    branch_id: str,
    body: Mapping[str, Any],
    url: str,
    doing: str = "restoring",
) -> HttpResponse:
    request.api.branching.restore(project_id, branch_id, body)
    name = body.get("preserve_under_name")
    kept = f" Its previous data is kept as {name}." if name else ""
    return done(request, url, f"Started {doing} the branch.{kept}")


def delete(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=branch_id)
    if form.may_be_name and (found := or_none(lambda: request.api.branch(project_id, branch_id))()):
        form.accept_name(found.name)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.branching.delete(project_id, branch_id)
            url = reverse("branches", args=[project_id])
            return done(request, url, f"Started deleting branch {form.name or branch_id}.")
    # A page must not ask to confirm the deletion of a branch that does not exist.
    read = choices(request, lambda: [_with_losses(request, project_id, branch_id)])
    name, refusal, lost = read[0] if read else ("", "", [])
    # Names of branches are unique in their project.
    form.accept_name(name)
    # For a form that was sent, the API's refusal is shown in the form.
    blocked = "" if request.method == "POST" else refusal
    return FormPage(
        title=f"Delete branch {name}" if name else "Delete branch",
        intro="" if blocked else "A deleted branch cannot be recovered. This permanently deletes:",
        submit="Delete branch",
        danger=True,
        back=_page(request, project_id, branch_id),
        blocked=blocked,
        losses=() if blocked else lost,
    ).show(request, form)


def _with_losses(
    request: ConsoleRequest, project_id: str, branch_id: str
) -> tuple[str, str, list[losses.Loss]]:
    """Return the branch's name, why it cannot be deleted ("" if it can), and what is lost with it.
    Raises NotFound."""
    api = request.api
    branches, endpoints, databases, roles, snapshots = in_parallel(
        lambda: api.branches(project_id),
        part(lambda: api.endpoints(project_id)),
        part(lambda: api.catalog.databases(project_id, branch_id)),
        part(lambda: api.catalog.roles(project_id, branch_id)),
        part(lambda: api.snapshots.list(project_id)),
    )
    branch, children = _branch_and_children(branches, branch_id)
    lost = losses.of_branch(branch, endpoints, databases, roles, snapshots)
    return branch.name, _deletion_refusal(branch, children), lost


def _deletion_refusal(branch: Branch, children: Sequence[Branch]) -> str:
    """Return why the branch cannot be deleted; "" if it can."""
    if branch.default:
        return f"{branch.name} is the default branch. Set another branch as default first."
    if branch.protected:
        return f"{branch.name} is protected. Turn off protection first."
    return (
        f"{branch.name} has child branches. Delete them first: {name_list(children)}."
        if children
        else ""
    )


def with_children(
    request: ConsoleRequest, branches: list[Branch], branch_id: str
) -> tuple[Branch | None, list[Branch]]:
    """Return the branch and its children. Raises NotFound. For a form that was sent, return None
    and no children instead of raising."""
    try:
        return _branch_and_children(branches, branch_id)
    except NotFound:
        if request.method != "POST":
            raise
        return None, []


def _branch_and_children(branches: list[Branch], branch_id: str) -> tuple[Branch, list[Branch]]:
    """Return the branch and its children. Raises NotFound."""
    branch = next((one for one in branches if one.id == branch_id), None)
    if branch is None:
        raise NotFound("branch not found", status=404)
    children = [one for one in branches if one.parent_id == branch_id]
    return branch, sorted(children, key=lambda child: by_name(child.name))


def _page(request: ConsoleRequest, project_id: str, branch_id: str) -> str:
    """Return the page that the form came from; by default the branch's own page."""
    return back(request, reverse("branch", args=[project_id, branch_id]))
