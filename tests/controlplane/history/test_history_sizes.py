"""What a branch's history takes on the disk: how that is measured, and how it is held to a limit.
This process does what the worker does."""

import time

import pytest

from controlplane.compute.host.filesystem import remove_tree
from controlplane.history.keeping import keep, publish, remove_outdated
from controlplane.history.local.chain import chains_of, history_dir
from controlplane.models import Account, Branch, Event, HistoryChain, Host
from tests.controlplane.compute.test_copies import MIB, PARENT, state_dir
from tests.controlplane.history.test_history_bases import (
    DISK,
    RETENTION,
    UseState,
    kept,
    recorder,
    synced,
    write_log,
    writing,
)
from tests.controlplane.rows import make_project
from tests.support.filesystems import mounted
from tests.support.recorded import Recorder
from tests.support.waiting import wait_for

__all__ = ["state_dir"]


def rewrite(written: Recorder, *statements: str) -> None:
    """Run a compute that executes the statements and writes so much log that a base is due."""
    with writing(written) as connection:
        kept()
        for statement in statements:
            connection.execute(statement.encode())
        write_log(connection, 40 * MIB)


def disk_size() -> int:
    return sum(one.disk_size() for one in chains_of(PARENT))


@pytest.mark.thorough
def test_what_bases_take_is_what_removing_them_frees(state_dir: UseState) -> None:
    with mounted("xfs", size=DISK) as place:
        state_dir(place)
        written = recorder()
        rewrite(
            written,
            "CREATE TABLE large AS SELECT repeat(md5(i::text), 30) AS words"
            " FROM generate_series(1, 50_000) i",
        )
        assert len(kept().bases()) == 2
        # The base has these blocks now, and the branch has others.
        rewrite(written, "VACUUM FULL large", "CHECKPOINT")
        assert len(kept().bases()) == 3
        rewrite(written, "DROP TABLE large", "CHECKPOINT")
        assert len(kept().bases()) == 4
        (chain,) = chains_of(PARENT)
        measured, free = chain.disk_size() - chain.log_size(), synced(place)
        assert measured > 80 * MIB
        remove_tree(chain.place / "bases")
        # XFS gives the blocks back some time after.
        wait_for(
            lambda: abs(synced(place) - free - measured) < measured / 50,
            f"{measured / MIB:.2f} MiB more of free space",
        )


@pytest.mark.thorough
@pytest.mark.django_db
def test_the_oldest_history_gives_way_to_the_branchs_size_limit(
    state_dir: UseState, account: Account, host: Host
) -> None:
    project = make_project(account, host)
    Branch.objects.create(id=PARENT, project=project, name="parent", current_state="ready")
    with mounted("xfs", size=DISK) as place:
        state_dir(place)
        written = recorder()
        for _ in range(3):
            rewrite(written)
            kept()
        before = disk_size()
        assert len(kept().bases()) == 4
        newest = kept().bases()[-1].end
        keep(PARENT, RETENTION, room=before // 2)
        assert 0 < disk_size() <= before // 2
        assert kept().bases()[-1].end == newest
        # Nothing is kept where there is no room, and a compute runs all the same.
        keep(PARENT, RETENTION, room=0)
        assert chains_of(PARENT) == []
        with writing(written) as connection:
            written.write(connection, 1)
            keep(PARENT, RETENTION, room=0)
            assert chains_of(PARENT) == []
            keep(PARENT, RETENTION, room=DISK)
            assert len(chains_of(PARENT)) == 1
    trimmed = Event.objects.get(project_id=project.id, type="history.trimmed")
    assert "leaves no more room" in trimmed.summary


@pytest.mark.thorough
@pytest.mark.django_db
def test_the_history_of_an_idle_branch_grows_old_too(
    state_dir: UseState, account: Account, host: Host
) -> None:
    project = make_project(account, host)
    Branch.objects.create(id=PARENT, project=project, name="parent", current_state="ready")
    with mounted("xfs", size=DISK) as place:
        state_dir(place)
        written = recorder()
        rewrite(written)
        assert len(kept().bases()) == 2
        publish(PARENT, chains_of(PARENT))
        before = Branch.objects.get(id=PARENT).history_bytes
        assert before == HistoryChain.objects.get().disk_bytes == disk_size() > 32 * MIB
        remove_outdated(host)
        assert len(kept().bases()) == 2
        project.history_retention_seconds = 1
        project.save()
        time.sleep(1.1)
        remove_outdated(host)
        assert len(HistoryChain.objects.get().bases) == 1
        assert Branch.objects.get(id=PARENT).history_bytes == disk_size() < before / 2
        project.history_retention_seconds = 0
        project.save()
        remove_outdated(host)
        assert not HistoryChain.objects.exists()
        assert not history_dir(PARENT).exists()
        assert Branch.objects.get(id=PARENT).history_bytes == 0
