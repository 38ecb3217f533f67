"""A project's history: written to, and read back from branches of past moments."""

from typing import Any, TypeVar

from tests.support.project import Project
from tests.support.waiting import wait_for

Some = TypeVar("Some", bound=Project)


def history(project: Project, branch_id: str | None = None) -> Any:
    return project.client.get(project.branch_path(branch_id, "/history"))["history"]


def with_history(project: Some) -> Some:
    """The project, once its branch has a history."""
    wait_for(lambda: history(project).get("earliest"), "the first base copy")
    return project


def past_moment(project: Project) -> str:
    """The last moment of the history of the project's first branch, once there is one."""
    return str(history(with_history(project))["latest"])


def write(project: Project, text: str) -> tuple[str, str]:
    """Commit a row. Returns the time and the position in the log after the commit."""
    project.sql("CREATE TABLE IF NOT EXISTS notes (text text)")
    project.sql(f"INSERT INTO notes VALUES ('{text}')")
    ((at, lsn),) = project.sql(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
        " || 'Z', pg_current_wal_insert_lsn()::text"
    )
    return at, lsn


def notes(project: Project, branch_id: str) -> list[str]:
    endpoint = project.create_endpoint(branch_id)["endpoint"]
    rows = project.sql("SELECT text FROM notes ORDER BY ctid", endpoint_id=endpoint["id"])
    return [text for (text,) in rows]


def failure(project: Project, **attributes: str) -> str:
    """Why the creation of a branch of a past moment failed."""
    answer = project.client.post(project.path + "/branches", {"branch": attributes})
    (ended,) = project.client.finish(answer)
    assert ended["status"] == "failed", ended
    return str(ended["error"])


def left_of_history(project: Project, branch_id: str | None = None) -> tuple[int, int]:
    """How many chains and former passwords the rows hold of the branch."""
    branch_id = branch_id or project.branch_id
    statement = (
        "SELECT (SELECT count(*) FROM controlplane_historychain WHERE branch_id = %(branch)s),"
        " (SELECT count(*) FROM controlplane_formerpassword WHERE branch_id = %(branch)s)"
    )
    with project.stack.database() as database:
        (left,) = database.execute(statement, {"branch": branch_id}).fetchall()
    return left
