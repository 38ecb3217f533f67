"""What is lost when something is deleted or replaced, for the page that asks to confirm it."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.api.parallel import Part
from console.api.resources.branches import Branch, Database, Role, Snapshot
from console.api.resources.endpoints import Endpoint
from console.api.resources.projects import Project
from console.templatetags.console_tags import size

# The most names of one kind. If there are more, the rest is counted.
MAX_NAMED = 8
NOT_KNOWN = "unavailable"


@dataclass(frozen=True)
class Loss:
    """One line of what is lost or, with `stays`, of what is not."""

    what: str
    which: str
    stays: bool = False


def of_branch(
    branch: Branch,
    endpoints: Part[Endpoint],
    databases: Part[Database],
    roles: Part[Role],
    snapshots: Part[Snapshot],
) -> list[Loss]:
    """Return what is lost if the branch is deleted, with everything on it."""
    own = [endpoint for endpoint in endpoints.items if endpoint.branch_id == branch.id]
    kept = [snapshot.name for snapshot in snapshots.items if snapshot.source_branch_id == branch.id]
    losses = [
        _endpoints(own, endpoints),
        _counted("database", databases, [database.name for database in databases.items]),
        _counted("role", roles, [role.name for role in roles.items]),
        Loss("Data", size(branch.logical_size)) if branch.logical_size is not None else None,
        Loss("Snapshots", f"kept: {listed(kept)}", stays=True) if kept else None,
    ]
    return [loss for loss in losses if loss]


def of_endpoint(endpoint: Endpoint, branch_name: str) -> list[Loss]:
    return [
        Loss("Host", endpoint.host),
        Loss("Connections", "closed at once; the host name is not used again"),
        Loss(f"Branch {branch_name}", "kept, with its databases and data", stays=True),
    ]


def of_project(
    project: Project,
    branches: Part[Branch],
    endpoints: Part[Endpoint],
    snapshots: Part[Snapshot],
) -> list[Loss]:
    found = [branch.logical_size for branch in branches.items if branch.logical_size is not None]
    losses = [
        _counted("branch", branches, [branch.name for branch in branches.items], "branches"),
        _endpoints(endpoints.items, endpoints),
        _counted("snapshot", snapshots, [snapshot.name for snapshot in snapshots.items])
        if snapshots.is_offered
        else None,
        _data(found, project, is_whole=len(found) == len(branches.items)),
    ]
    return [loss for loss in losses if loss]


def _data(sizes: Sequence[int], project: Project, *, is_whole: bool) -> Loss | None:
    if not sizes:
        return None
    history = ", and its history" if project.history_retention else ""
    return Loss("Data", f"{'' if is_whole else 'at least '}{size(sum(sizes))}{history}")


def _endpoints(own: Sequence[Endpoint], read: Part[Endpoint]) -> Loss | None:
    if read.problem:
        return Loss("Endpoint", NOT_KNOWN)
    ids = [endpoint.id for endpoint in own]
    if not ids:
        return None
    what = "1 endpoint" if len(ids) == 1 else f"{len(ids)} endpoints"
    return Loss(what, f"with all connections, which are closed at once: {listed(ids)}")


def _counted(what: str, read: Part[object], names: Sequence[str], plural: str = "") -> Loss | None:
    many = plural or f"{what}s"
    if read.problem:
        return Loss(many.capitalize(), NOT_KNOWN)
    if not names:
        return None
    return Loss(f"1 {what}" if len(names) == 1 else f"{len(names)} {many}", listed(names))


def listed(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Return the names as words of a sentence."""
    more = len(names) - most
    shown = ", ".join(f"{name}" for name in names[:most])
    return f"{shown} and {more} more" if more > 0 else shown
