"""The history of a branch: branches, restores and snapshots of its past moments."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.models import Branch, HistoryChain
from controlplane.services.errors import Unprocessable
from controlplane.services.rules.history import History, PastMoment
from tests.selection import first_of
from tests.support.past import history, left_of_history, notes, with_history, write
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def create(project: Project, **attributes: str) -> None:
    """Create a role or a database: `role` or `database` is its name."""
    (kind, name), *others = attributes.items()
    body = {kind: {"name": name, **dict(others)}}
    project.done(project.client.post(f"{project.branch_path()}/{kind}s", body))


@pytest.mark.parametrize("named_by", first_of(["parent_timestamp", "parent_lsn"]))
def test_a_branch_of_a_past_moment(fresh_project: Project, named_by: str) -> None:
    project = with_history(fresh_project)
    write(project, "first")
    at, lsn = write(project, "second")
    write(project, "third")
    moments: dict[str, Any] = {"parent_timestamp": at, "parent_lsn": lsn}
    answer = project.new_branch(**{named_by: moments[named_by]})
    made = answer["branch"]
    assert project.branch(made["id"])[named_by] == moments[named_by]
    assert notes(project, made["id"]) == ["first", "second"]
    created = project.operation(answer["operations"][0]["id"])
    steps = {one["name"]: one["detail"] for one in created["steps"]}
    for name in ("copying_base", "adding_log"):
        if of_bytes := steps[name].get("of_bytes"):
            assert 0 < steps[name]["bytes"] <= of_bytes
    assert project.branch(made["id"])["parent_id"] == project.branch_id


@pytest.mark.parametrize("how", first_of(["reassigned", "deleted"]))
def test_a_branch_that_its_endpoint_leaves_has_all_of_its_history(
    fresh_project: Project, how: str
) -> None:
    project = with_history(fresh_project)
    before, _ = write(project, "first")
    if how == "deleted":
        project.done(project.client.delete(project.endpoint_path()))
    else:
        other = project.new_branch_id(name="other")
        project.done(project.change(branch_id=other))
    # At no time it says that there were no commits.
    wait_for(lambda: history(project)["commits_until"] > before, "all commits to be known")
    assert sum(one["count"] for one in history(project)["commits"])


def test_a_branch_of_the_past_has_the_roles_databases_and_passwords_of_then(
    fresh_project: Project,
) -> None:
    project = with_history(fresh_project)
    create(project, role="kept")
    before = project.client.get(f"{project.branch_path()}/roles/kept/reveal_password")["password"]
    create(project, role="dropped_later")
    project.sql("CREATE ROLE by_sql LOGIN")
    at, _ = write(project, "then")
    project.done(project.client.post(f"{project.branch_path()}/roles/kept/reset_password"))
    project.done(project.client.delete(f"{project.branch_path()}/roles/dropped_later"))
    create(project, role="created_later")
    create(project, database="created_later_too", owner_name="kept")
    made = project.new_branch(parent_timestamp=at)["branch"]
    path = project.branch_path(made["id"])
    names = {role["name"] for role in project.client.get(f"{path}/roles")["roles"]}
    assert {"kept", "dropped_later", "by_sql"} <= names
    assert "created_later" not in names
    databases = {one["name"] for one in project.client.get(f"{path}/databases")["databases"]}
    assert databases == {"neondb"}
    assert project.client.get(f"{path}/roles/kept/reveal_password") == {"password": before}


def test_a_branch_is_restored_from_its_own_past_and_its_history_goes_on(
    fresh_project: Project,
) -> None:
    project = with_history(fresh_project)
    first, _ = write(project, "first")
    second, _ = write(project, "second")
    body = {
        "source_branch_id": project.branch_id,
        "source_timestamp": first,
        "preserve_under_name": "as it was",
    }
    project.done(project.client.post(project.branch_path(rest="/restore"), body))
    assert project.sql("SELECT text FROM notes") == [("first",)]
    # The moments of before the restore are still the branch's.
    write(project, "third")
    made = project.new_branch(parent_timestamp=second)["branch"]
    assert notes(project, made["id"]) == ["first", "second"]
    # The moment of the restore is the first one of the restored data.
    assert history(project)["gaps"] == []
    (restored,) = history(project)["restores"]
    at = datetime.fromisoformat(restored["at"])
    for moment, rows in ((at - timedelta(microseconds=1), ["first", "second"]), (at, ["first"])):
        made = project.new_branch(parent_timestamp=moment.isoformat())["branch"]
        assert notes(project, made["id"]) == rows


@pytest.mark.thorough
def test_the_history_goes_on_if_a_branch_was_idle_when_it_was_restored(
    fresh_project: Project,
) -> None:
    """Its first base is then of a stopped compute, whose log's segment began on the old
    timeline."""
    project = with_history(fresh_project)
    first, _ = write(project, "first")
    write(project, "second")
    project.suspend()
    body = {"source_branch_id": project.branch_id, "source_timestamp": first}
    project.done(project.client.post(project.branch_path(rest="/restore"), body))
    restored = history(project)["latest"]
    project.start()
    third, _ = write(project, "third")
    made = project.new_branch(parent_timestamp=third)["branch"]
    assert notes(project, made["id"]) == ["first", "third"]
    made = project.new_branch(parent_timestamp=restored)["branch"]
    assert notes(project, made["id"]) == ["first"]
    assert history(project)["gaps"] == []
    assert project.client.get(f"{project.path}/events", type="history.gap")["events"] == []


@pytest.mark.thorough
def test_a_snapshot_of_a_past_moment(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    at, _ = write(project, "first")
    write(project, "second")
    answer = project.client.post(project.branch_path(rest="/snapshot"), {"timestamp": at})
    project.done(answer)
    path = f"{project.path}/snapshots/{answer['snapshot']['id']}"
    assert project.client.get(f"{project.path}/snapshots")["snapshots"][0]["timestamp"] == at
    restored = project.client.post(f"{path}/restore", {})
    project.done(restored)
    assert notes(project, restored["branch"]["id"]) == ["first"]


@pytest.mark.thorough
def test_history_counts_as_storage(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    write(project, "first")
    since = datetime.now(UTC)
    project.suspend()
    wait_for(lambda: history(project)["disk_bytes"] > 0, "the size of the history")
    told = history(project)
    assert told["log_bytes"] <= told["disk_bytes"] <= told["log_bytes"] + told["base_bytes"]

    def counted() -> int:
        query = f"from={since:%FT%TZ}&to={datetime.now(UTC):%FT%TZ}&granularity=daily"
        (one,) = project.client.get(
            f"/consumption_history/v2/projects?{query}&metrics=instant_restore_bytes_month"
            f"&project_ids={project.id}"
        )["projects"]
        frames = [frame for period in one["periods"] for frame in period["consumption"]]
        return sum(metric["value"] for frame in frames for metric in frame["metrics"])

    wait_for(lambda: counted() > 0, "the history's consumption")
    data = project.branch(project.branch_id).get("logical_size", 0)
    total = project.client.get(project.path)["project"]["synthetic_storage_size"]
    assert total == data + history(project)["disk_bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize("ends_by", ["deletion", "expiry"])
def test_nothing_is_left_of_the_history_of_a_branch(fresh_project: Project, ends_by: str) -> None:
    project = with_history(fresh_project)
    write(project, "first")
    made = project.new_branch(endpoint=True)
    child, endpoint = made["branch"]["id"], made["endpoints"][0]["id"]
    wait_for(lambda: history(project, child).get("earliest"), "the child's first base copy")
    project.sql("INSERT INTO notes VALUES ('of the child')", endpoint_id=endpoint)
    project.done(
        project.client.post(project.branch_path(child, "/roles/neondb_owner/reset_password"))
    )
    directory = project.stack.data_dir(child).parent
    assert (directory / "history").exists()
    if ends_by == "deletion":
        project.done(project.client.delete(project.branch_path(child)))
    else:
        soon = {"branch": {"ttl_interval_seconds": 1}}
        project.client.patch(project.branch_path(child), soon)
    wait_for(lambda: not directory.exists(), "the removal of the data")
    wait_for(lambda: left_of_history(project, child) == (0, 0), "the removal of the rows")
    # What was the child's is not in its parent's history.
    at, _ = write(project, "second")
    made = project.new_branch(parent_timestamp=at)
    assert notes(project, made["branch"]["id"]) == ["first", "second"]


def test_a_moment_outside_of_the_history_is_refused(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    before = datetime.fromisoformat(history(project)["earliest"]) - timedelta(seconds=1)
    for moment, words in [
        (before.isoformat(), "outside of the branch's history, which goes from"),
        ((datetime.now(UTC) + timedelta(hours=1)).isoformat(), "is in the future"),
        ("2026-11-23T14:03:00", "must be a time such as"),
    ]:
        body = {"branch": {"parent_timestamp": moment}}
        status, message = refusal(
            project.client.call("POST", project.path + "/branches", json=body)
        )
        assert status in (400, 422)
        assert words in message
    body = {"branch": {"parent_lsn": "FF/0"}}
    assert project.client.call("POST", project.path + "/branches", json=body).status_code == 422
    assert len(project.client.get(project.path + "/branches")["branches"]) == 1


@pytest.mark.parametrize(
    ("lsn", "is_known"),
    [(99, False), (450, True), (550, True), (650, False), (750, True), (950, True)],
)
def test_of_a_position_that_a_restored_branch_had_twice_the_latest_is_meant(
    lsn: int, is_known: bool
) -> None:
    """After a restore to 500, 650 was written anew, but not kept; the 650 before is not meant."""
    now = datetime.now(UTC)
    chains = [
        HistoryChain(first_lsn=first, last_lsn=last, first_at=now, last_at=now, ended_at=ended)
        for first, last, ended in [(100, 900, now), (500, 600, now), (700, 800, None)]
    ]
    asked = History(Branch(), chains, now)
    with nullcontext() if is_known else pytest.raises(Unprocessable, match="outside"):
        asked.refuse_outside(PastMoment(lsn=lsn), "parent_lsn")


@pytest.mark.thorough
def test_what_was_committed_before_a_crash_is_recovered_before_the_next_start(
    fresh_project: Project,
) -> None:
    project = with_history(fresh_project)
    first, _ = write(project, "first")
    second, _ = write(project, "second")
    project.postmaster().kill()
    wait_for(lambda: project.endpoint()["current_state"] == "idle", "the reconciler")
    for at, expected in ((second, ["first", "second"]), (first, ["first"])):
        made = project.new_branch(parent_timestamp=at)["branch"]
        assert notes(project, made["id"]) == expected
    project.start()
    third, _ = write(project, "third")
    made = project.new_branch(parent_timestamp=third)["branch"]
    assert notes(project, made["id"]) == ["first", "second", "third"]
    assert history(project)["gaps"] == []


@pytest.mark.thorough
def test_a_commit_whose_client_did_not_wait_for_the_disk_is_recovered(
    fresh_project: Project,
) -> None:
    project = with_history(fresh_project)
    write(project, "first")
    project.sql("ALTER DATABASE neondb SET synchronous_commit = off")
    (flushes,) = [
        process
        for process in project.postmaster().children()
        if "walwriter" in " ".join(process.cmdline())
    ]
    flushes.suspend()
    try:
        at, _ = write(project, "second")
        made = project.new_branch(parent_timestamp=at)["branch"]
    finally:
        flushes.resume()
    assert notes(project, made["id"]) == ["first", "second"]


@pytest.mark.thorough
def test_a_branch_is_restored_to_a_position_of_its_parents_log(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    _, lsn = write(project, "first")
    write(project, "second")
    child = project.new_branch()["branch"]["id"]
    body = {"source_branch_id": project.branch_id, "source_lsn": lsn}
    project.done(project.client.post(project.branch_path(child, "/restore"), body))
    assert notes(project, child) == ["first"]


@pytest.mark.thorough
def test_without_a_retention_no_history_is_kept(stack: Stack) -> None:
    client = stack.client()
    project = Project.create(stack, client, history_retention_seconds=0)
    write(project, "first")
    body = {"branch": {"parent_timestamp": datetime.now(UTC).isoformat()}}
    status, words = refusal(client.call("POST", project.path + "/branches", json=body))
    assert (status, "history_retention_seconds" in words) == (422, True)
    client.patch(project.path, {"project": {"history_retention_seconds": 3600}})
    with_history(project)
    at, _ = write(project, "second")
    made = project.new_branch(parent_timestamp=at)["branch"]
    assert notes(project, made["id"]) == ["first", "second"]
    client.patch(project.path, {"project": {"history_retention_seconds": 0}})
    wait_for(lambda: not history(project)["bases"], "the end of the history")
    assert not (project.stack.data_dir(project.branch_id).parent / "history").exists()


@pytest.mark.thorough
def test_a_protected_branchs_passwords_do_not_work_for_its_past(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    reveal = "/roles/neondb_owner/reveal_password"
    original = project.client.get(project.branch_path(rest=reveal))["password"]
    at, _ = write(project, "first")
    project.client.patch(project.branch_path(), {"branch": {"protected": True}})
    made = project.new_branch(parent_timestamp=at)
    (given,) = [role for role in made["roles"] if role["name"] == "neondb_owner"]
    path = project.branch_path(made["branch"]["id"], reveal)
    assert project.client.get(path) == {"password": given["password"]}
    assert given["password"] != original
