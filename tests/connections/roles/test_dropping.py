"""Whatever ends an endpoint's run ends its clients' connections, with 57P01."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.selection import first_of
from tests.support.place import Connection, Place, last_words
from tests.support.waiting import wait_for

ENDINGS: dict[str, Callable[[Place], Any]] = {
    "suspended": lambda place: place.client.post(f"{place.endpoint_path()}/suspend"),
    "disabled": lambda place: place.client.patch(
        place.endpoint_path(), {"endpoint": {"disabled": True}}
    ),
    "reassigned": lambda place: place.client.patch(
        place.endpoint_path(), {"endpoint": {"branch_id": place.new_branch_id(name="dev")}}
    ),
    "deleted": lambda place: place.client.delete(place.endpoint_path()),
}


@pytest.fixture
def connections(place: Place) -> Iterator[list[Connection]]:
    """Direct and pooled connections, with and without TLS. Each has been used."""
    with ExitStack() as opened:
        found = [
            opened.enter_context(place.connect(pooled=pooled, tls=tls))
            for pooled in (False, True)
            for tls in (False, True)
        ]
        for connection in found:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        yield found


@pytest.mark.parametrize("how", first_of(ENDINGS, count=2))
def test_clients_get_an_error_when_their_endpoint_is(
    place: Place, connections: list[Connection], how: str
) -> None:
    # Read before the drop, because afterwards they are gone.
    compute, pooler = place.postmaster(), place.pooler()
    assert pooler is not None
    ENDINGS[how](place)
    # Between transactions, a pooled client depends on no compute that is merely suspended.
    ended = connections[:2] if how == "suspended" else connections
    assert [last_words(connection) for connection in ended] == ["57P01"] * len(ended)
    wait_for(lambda: not compute.is_running() and not pooler.is_running(), "the processes to end")


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_running_query_ends_with_its_endpoint(place: Place, pooled: bool) -> None:
    with ThreadPoolExecutor(1) as thread, place.connect(pooled=pooled) as connection:
        running = thread.submit(connection.execute, "SELECT pg_sleep(60)")
        wait_for(lambda: place.sleepers() == 1, "the query to run")
        place.client.post(f"{place.endpoint_path()}/suspend")
        with pytest.raises(psycopg.OperationalError) as ended:
            running.result(30)
    assert ended.value.sqlstate in ("57P01", "08P01")
    assert place.query("SELECT 1", pooled=pooled) == (1,)


@pytest.mark.thorough
def test_settings_that_need_no_restart_drop_nobody(place: Place) -> None:
    with place.connect() as direct, place.connect(pooled=True) as pooled:
        backend = direct.info.backend_pid
        place.change(settings={"pg_settings": {"work_mem": "5MB"}})
        place.new_role("somebody")
        assert direct.execute("SELECT 1").fetchone() == (1,)
        assert pooled.execute("SELECT 1").fetchone() == (1,)
        assert direct.info.backend_pid == backend
