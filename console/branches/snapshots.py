"""The forms to take, change, restore and delete snapshots of branches."""

from django.http import HttpResponse
from django.urls import reverse
from django.utils.timezone import localtime

from console.api.errors import NotFound
from console.api.parallel import in_parallel
from console.api.resources.branches import Snapshot
from console.branches.forms import SnapshotEditForm, SnapshotForm, SnapshotRestoreForm
from console.forms.api_requests import body_of
from console.forms.losses import Loss
from console.pages.addresses import back
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, done, show_confirmation
from console.request import ConsoleRequest
from console.templatetags.console_tags import size


def create(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    url = reverse("branch", args=[project_id, branch_id])
    form = SnapshotForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            body = body_of(form, "snapshot_create")
            taken = request.api.snapshots.create(project_id, branch_id, body)
            return done(request, url, f"Started creating snapshot {taken.name}.")
    return FormPage(
        title="Create snapshot",
        intro="A copy of the branch as it is now, with its roles, passwords and databases. "
        "It is kept if the branch is deleted.",
        back=url,
    ).show(request, form)


def edit(request: ConsoleRequest, project_id: str, snapshot_id: str) -> HttpResponse:
    """Change the snapshot's name and expiry."""
    url = back(request, reverse("branches", args=[project_id]))
    form = SnapshotEditForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            end = form.expires_at
            request.api.snapshots.update(project_id, snapshot_id, body_of(form, "snapshot_edit"))
            words = f"expires at {localtime(end):%Y-%m-%d %H:%M %Z}" if end else "does not expire"
            return done(request, url, f"Snapshot {form.cleaned_data['name']} {words}.")
    if request.method != "POST":
        (snapshot,) = _list_of_one(request, project_id, snapshot_id)
        form.initial.update({"name": snapshot.name, **form.initial_of(snapshot.expires_at)})
    return FormPage(title="Edit snapshot", submit="Save", back=url).show(request, form)


def restore(request: ConsoleRequest, project_id: str, snapshot_id: str) -> HttpResponse:
    url = back(request, reverse("branches", args=[project_id]))
    form = SnapshotRestoreForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            body = body_of(form, "snapshot_restore")
            restored_id = request.api.snapshots.restore(project_id, snapshot_id, body)
            words = (
                "Started restoring the branch from the snapshot."
                if form.cleaned_data["target_id"]
                else "Started creating a branch from the snapshot."
            )
            return done(request, reverse("branch", args=[project_id, restored_id]), words)
    snapshots, branches = in_parallel(
        lambda: choices(request, lambda: _list_of_one(request, project_id, snapshot_id)),
        lambda: choices(request, lambda: request.api.branches(project_id)),
    )
    source_id = snapshots[0].source_branch_id if snapshots else ""
    form.offer_targets(sorted(branches, key=lambda branch: branch.id != source_id))
    name = f"snapshot {snapshots[0].name}" if snapshots else "the snapshot"
    return FormPage(
        title=f"Restore {name}",
        intro="Restore to a new branch without a parent and without an endpoint, or replace the "
        "data of an existing branch. The existing branch keeps its id, name and endpoint; its "
        "connections are closed, and its previous data is kept as another branch.",
        submit="Restore snapshot",
        back=url,
    ).show(request, form)


def delete(request: ConsoleRequest, project_id: str, snapshot_id: str) -> HttpResponse:
    url = back(request, reverse("branches", args=[project_id]))

    def remove() -> HttpResponse:
        request.api.snapshots.delete(project_id, snapshot_id)
        return done(request, url, "Snapshot deleted.")

    def page() -> FormPage:
        found = choices(request, lambda: _list_of_one(request, project_id, snapshot_id))
        return FormPage(
            title=f"Delete snapshot {found[0].name}" if found else "Delete snapshot",
            intro="This permanently deletes:",
            submit="Delete snapshot",
            danger=True,
            back=url,
            losses=_losses(found[0]) if found else (),
        )

    return show_confirmation(request, page, remove)


def _losses(snapshot: Snapshot) -> list[Loss]:
    taken = snapshot.timestamp or snapshot.created_at
    when = f"as of {localtime(taken):%Y-%m-%d %H:%M:%S %Z}" if taken else "as of its creation"
    much = f"{size(snapshot.full_size)}, " if snapshot.full_size is not None else ""
    return [
        Loss("Copy of the branch", f"{much}{when}"),
        Loss("Branch", "kept, and so are branches restored from the snapshot", stays=True),
    ]


def _list_of_one(request: ConsoleRequest, project_id: str, snapshot_id: str) -> list[Snapshot]:
    """Return that snapshot, as a list of one, for `choices`. The API can only list all snapshots.
    Raises NotFound."""
    found = [one for one in request.api.snapshots.list(project_id) if one.id == snapshot_id]
    if not found:
        raise NotFound("snapshot not found", status=404)
    return found
