"""What a host finds after a power cut of what was reported as done just before. The kernel's memory
is lost, and with it everything that was not flushed to disk."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest

from controlplane.compute.data import branch_data
from controlplane.compute.data.state_directory import access_files, identity
from controlplane.compute.host.wal import timeline_file
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.environment import envsecret
from controlplane.history.local.chain import chains_of
from controlplane.history.local.commits import commits_around
from controlplane.history.local.moments import find_lsn
from controlplane.history.local.pulling import pull_stopped
from controlplane.history.local.recovering import serving_moment
from tests.controlplane.compute.test_copies import CHILD, MIB, PARENT, one, running, state_dir
from tests.controlplane.history.test_history_bases import take_first_base
from tests.support.filesystems import SBIN, after_power_cut, mounted

__all__ = ["state_dir"]

KEPT = "br-kept"
UseState = Callable[[Path], None]


@pytest.fixture(scope="module")
def disk() -> Iterator[tuple[Path, str]]:
    """A disk on which copies share blocks, if this host can mount one."""
    kind = "xfs" if shutil.which("mkfs.xfs", path=SBIN) else "ext4"
    with mounted(kind, size=500 * MIB) as place:
        yield place, kind


@pytest.fixture
def parent(disk: tuple[Path, str], state_dir: UseState) -> Iterator[None]:
    """A branch with a row, on which no process works. All data has been written to the disk."""
    place, _ = disk
    state_dir(place)
    branch_data.create_from_template(PARENT)
    with running(PARENT) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    yield
    state_dir(place)
    for branch_id in (PARENT, CHILD, KEPT):
        branch_data.remove(branch_id)


def number_in(branch_id: str, query: str = "SELECT number FROM kept") -> object:
    with running(branch_id) as connection:
        return one(connection, query)


def pull() -> None:
    (chain,) = chains_of(CHILD)
    pull_stopped(chain, CHILD)


def newest_number() -> object:
    """The number at the newest moment of the child's history."""
    (chain,) = chains_of(CHILD)
    with (
        serving_moment(
            "br-moment", lambda: find_lsn(CHILD, chain.copied), holding=nullcontext
        ) as sockets,
        psycopg.connect(host=str(sockets), user=PLATFORM_ROLE, dbname="postgres") as connection,
    ):
        row = connection.execute("SELECT number FROM kept").fetchone()
    return row[0] if row else None


def test_a_new_branch_survives(disk: tuple[Path, str], parent: None, state_dir: UseState) -> None:
    branch_data.create_from_parent(CHILD, PARENT)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert branch_data.data_dir(CHILD).is_dir()
        assert number_in(CHILD) == 7


def test_the_history_of_a_new_branch_survives(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_parent(CHILD, PARENT, begin_history=take_first_base)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert newest_number() == 7
    state_dir(disk[0])
    with running(CHILD) as connection:
        connection.execute("UPDATE kept SET number = 8")
    pull()
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert newest_number() == 8
        (chain,) = chains_of(CHILD)
        assert [commit.lsn for commit in commits_around(chain, 0, chain.copied) if commit]


def test_a_timelines_file_that_a_power_cut_has_emptied_is_copied_again(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_parent(CHILD, PARENT, begin_history=take_first_base)
    (chain,) = chains_of(CHILD)
    name, content = timeline_file(chain.timeline), b"1\t0/3000000\tno recovery target specified\n"
    (branch_data.data_dir(CHILD) / "pg_wal" / name).write_bytes(content)
    (chain.log / name).touch()
    with running(CHILD) as connection:
        connection.execute("UPDATE kept SET number = 8")
    pull()
    assert (chain.log / name).read_bytes() == content


@pytest.mark.thorough
def test_a_branch_made_from_the_template_survives(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_template(CHILD)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert branch_data.data_dir(CHILD).is_dir()
        assert number_in(CHILD, "SELECT 1") == 1


@pytest.mark.thorough
def test_a_restored_branch_has_the_sources_rows_and_the_preserved_one_its_own(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_parent(CHILD, PARENT)
    with running(CHILD) as connection:
        connection.execute("UPDATE kept SET number = 8")
    branch_data.replace(CHILD, PARENT, kept_as=KEPT, must_keep=True)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert branch_data.data_dir(KEPT).is_dir()
        assert number_in(CHILD) == 7
        assert number_in(KEPT) == 8


@pytest.mark.thorough
def test_an_undone_restore_stays_undone(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_parent(CHILD, PARENT)
    with running(CHILD) as connection:
        connection.execute("UPDATE kept SET number = 8")
    branch_data.replace(CHILD, PARENT, kept_as=KEPT, must_keep=True)
    branch_data.undo_replace(CHILD, kept_as=KEPT)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert not branch_data.data_dir(KEPT).exists()
        assert number_in(CHILD) == 8


@pytest.mark.thorough
def test_directories_that_are_made_once_survive(
    disk: tuple[Path, str], state_dir: UseState
) -> None:
    place, _ = disk
    state_dir(place)
    made = envsecret("PERCH_NO_SUCH_SECRET", place / "a-secret", makes=True), identity()
    access = [Path(name).read_text() for name in access_files().values()]
    with after_power_cut(*disk) as found:
        state_dir(found)
        secret = envsecret("PERCH_NO_SUCH_SECRET", found / "a-secret", makes=False)
        assert (secret, identity()) == made
        assert [Path(name).read_text() for name in access_files().values()] == access


@pytest.mark.thorough
def test_a_removed_branch_does_not_reappear(
    disk: tuple[Path, str], parent: None, state_dir: UseState
) -> None:
    branch_data.create_from_parent(CHILD, PARENT)
    branch_data.remove(CHILD)
    with after_power_cut(*disk) as found:
        state_dir(found)
        assert not branch_data.branch_dir(CHILD).exists()
