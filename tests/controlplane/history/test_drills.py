"""A drill starts what it restores from the store, and checks its structures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import clock
from controlplane.compute.data import branch_data
from controlplane.compute.data.integrity import DataDamaged, check_structures
from controlplane.compute.host.tree import open_directory
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.history.store.drills import verify
from controlplane.history.store.layout import BranchList, StoredData, branch_folder, write_list
from controlplane.history.store.objects import Store
from controlplane.history.store.packing import tree_stream
from tests.controlplane.compute.test_copies import PARENT, running, state_dir
from tests.support.bare_postgres import Programs, bare_postgres, private_directory
from tests.support.object_store import file_store
from tests.support.stack import new_state_dir

__all__ = ["state_dir"]

pytestmark = pytest.mark.slow

HOST = "regions/local/host"


@pytest.fixture
def store(state_dir: Callable[[Path], None]) -> Iterator[Store]:
    """A store beside the state directory of this process, which has a branch that never ran."""
    with new_state_dir() as place:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        yield file_store(place / "store")


def copy_data(store: Store) -> None:
    """Copy the branch's data to the store, as of a branch without history."""
    folder = branch_folder(HOST, PARENT)
    name = f"{folder}/data/1"
    with open_directory(branch_data.data_dir(PARENT)) as directory:
        store.put(name, tree_stream(directory))
    write_list(store, folder, BranchList(PARENT, data=StoredData(name, clock.now())))


def verified(store: Store) -> str:
    """The error of a drill with the branch; "" for none."""
    (result,) = verify(store, HOST, say=print, branch_ids=[PARENT])
    assert not branch_data.branch_dir("history-drill").exists()
    return result.error


def test_a_branch_without_history_is_started_to_check_it(store: Store) -> None:
    copy_data(store)
    assert verified(store) == ""
    catalog = branch_data.data_dir(PARENT) / "base" / "1" / "1249"
    content = bytearray(catalog.read_bytes())
    content[100] ^= 1
    catalog.write_bytes(content)
    copy_data(store)
    assert verified(store) != ""


def test_a_branch_that_the_store_does_not_have_is_an_error_if_it_was_named(store: Store) -> None:
    assert verified(store) == "no base copy of it is complete in the store"
    assert verify(store, HOST, say=print) == []


@pytest.mark.thorough
def test_an_index_that_does_not_have_its_order_is_found(state_dir: Callable[[Path], None]) -> None:
    with new_state_dir() as place:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        sockets = socket_dir(PARENT.replace("br-", "ep-"))
        with running(PARENT) as connection:
            connection.execute("CREATE TABLE things AS SELECT generate_series(1, 5000) AS number")
            connection.execute("CREATE INDEX of_things ON things (number)")
            # An extension of the owner's, with another function of the same name.
            connection.execute("CREATE SCHEMA own")
            connection.execute("CREATE ROLE perch_superuser")
            connection.execute("CREATE EXTENSION amcheck SCHEMA own")
            connection.execute(
                "CREATE FUNCTION public.bt_index_check(oid) RETURNS void LANGUAGE sql AS ''"
            )
            check_structures(sockets)
            # The catalog now says that the order is descending.
            connection.execute(
                "UPDATE pg_index SET indoption = '3' WHERE indexrelid = 'of_things'::regclass"
            )
            with pytest.raises(DataDamaged, match=r'database "postgres": the index \d+ is damaged'):
                check_structures(sockets)


def test_a_lock_of_a_prepared_transaction_is_no_damage() -> None:
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as cluster:
        cluster.start(max_prepared_transactions="1")
        cluster.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
        cluster.execute("CREATE TABLE things (number int PRIMARY KEY)")
        with cluster.connect() as connection:
            connection.execute("BEGIN; LOCK TABLE things; PREPARE TRANSACTION 'held'")
        check_structures(cluster.directory)
