"""The requests about past moments that the users of the API send at random."""

from collections.abc import Callable, Mapping

from tests.torture.checked_api import Answer
from tests.torture.user_requests import ProjectClient, delete_branch

# A branch whose name begins so is only restored, again and again: nobody writes to it, so what it
# must hold is known.
RESTORED = "restored-"


def create_branch_of_moment(project: ProjectClient) -> Answer | None:
    if len(project.branches) >= project.world.size.branches:
        return delete_branch(project)
    return _create(project, f"then-{project.chance.getrandbits(48):012x}")


def restore_to_moment(project: ProjectClient) -> Answer | None:
    """Restore the project's branch for that, or create it."""
    if not project.restored:
        return _create(project, f"{RESTORED}{project.chance.getrandbits(48):012x}")
    moment = project.world.ledger.any_moment(project.project_id, project.chance)
    if moment is None:
        return None
    branch_id = project.restored[0]["id"]
    project.world.ledger.expect_restore(branch_id, moment)
    body = {"source_branch_id": moment.copied.parent_id, "source_lsn": moment.lsn}
    return _counted(
        project, "restore", project.send("POST", f"/branches/{branch_id}/restore", body)
    )


def _create(project: ProjectClient, name: str) -> Answer | None:
    ledger = project.world.ledger
    moment = ledger.any_moment(project.project_id, project.chance)
    if moment is None:
        return None
    ledger.expect_moment(name, moment)
    branch = {"name": name, "parent_id": moment.copied.parent_id, "parent_lsn": moment.lsn}
    answer = project.send("POST", "/branches", {"branch": branch})
    if answer and answer.ok:
        ledger.note_branch(answer.body["branch"]["id"], name)
    return _counted(project, "branch", answer)


def _counted(project: ProjectClient, kind: str, answer: Answer | None) -> Answer | None:
    if answer and (answer.ok or answer.status == 422):
        project.world.journal.count("moments", kind if answer.ok else "refused")
    return answer


PAST_WEIGHTS: Mapping[Callable[[ProjectClient], Answer | None], int] = {
    create_branch_of_moment: 8,
    restore_to_moment: 5,
}
