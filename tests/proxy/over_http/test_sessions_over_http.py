"""SQL over HTTP and the compute: the sessions that requests share, the wake that a request waits
for, and what happens to a running query when its client or its compute goes away."""

import concurrent.futures
import time
from collections.abc import Iterator

import pytest
import requests

from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.http_client import SqlClient, connection_string, headers
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def sql(proxy: RunningProxy) -> Iterator[SqlClient]:
    with SqlClient(proxy) as client:
        yield client


def test_a_session_is_clean_for_the_next_request(sql: SqlClient) -> None:
    dirt = [
        "SET search_path = nowhere",
        "SET ROLE NONE",
        "CREATE TEMP TABLE left_over (n int)",
        "PREPARE left_over AS SELECT 1",
        "LISTEN left_over",
        "SELECT pg_advisory_lock(4711)",
        "DECLARE left_over CURSOR WITH HOLD FOR SELECT 1",
        "BEGIN",
    ]
    (before,) = sql.rows("SELECT pg_backend_pid()")
    for statement in dirt:
        sql.query(statement)
    clean = sql.rows(
        "SELECT pg_backend_pid()::text, current_setting('search_path'), to_regclass('left_over'),"
        " (SELECT count(*) FROM pg_prepared_statements),"
        " (SELECT count(*) FROM pg_cursors WHERE name <> ''),"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    )
    assert clean == [[*before, '"$user", public', None, "0", "0", "0"]]
    assert sql.rows("SELECT count(*) FROM pg_listening_channels()") == [["0"]]


def test_sessions_are_not_shared_between_roles_and_settings(sql: SqlClient) -> None:
    (own,) = sql.rows("SELECT pg_backend_pid()")
    for other in (
        connection_string(role="bob"),
        connection_string(database="template1"),
        connection_string(query="?options=-c%20work_mem%3D1MB"),
    ):
        answer = sql.post({"query": "SELECT pg_backend_pid()"}, connection=other)
        assert answer.json()["rows"] != [own]
    settings = connection_string(query="?options=-c%20work_mem%3D1MB&application_name=app")
    shown = sql.post(
        {"query": "SELECT current_setting('work_mem'), current_setting('application_name')"},
        connection=settings,
    )
    assert shown.json()["rows"] == [["1MB", "app"]]


def test_a_session_ends_when_its_roles_password_changes(
    sql: SqlClient, directory: MemoryDirectory, postgres: BarePostgres
) -> None:
    (before,) = sql.rows("SELECT pg_backend_pid()")
    with postgres.connect() as connection:
        changed = connection.pgconn.encrypt_password(b"new", b"alice", b"scram-sha-256").decode()
    directory.endpoints[ENDPOINT].verifiers["alice"] = changed
    assert sql.refusal("SELECT 1")["code"] == "28P01"
    again = connection_string(password="new")
    answer = sql.post({"query": "SELECT pg_backend_pid()"}, connection=again)
    assert answer.json()["rows"] != [before]


def test_a_session_that_has_ended_is_replaced(sql: SqlClient, postgres: BarePostgres) -> None:
    ((pid,),) = sql.rows("SELECT pg_backend_pid()")
    postgres.execute("SELECT pg_terminate_backend(%s, 5000)", int(pid))
    assert sql.rows("SELECT 1") == [["1"]]


def test_idle_sessions_end_by_themselves(sql: SqlClient, postgres: BarePostgres) -> None:
    named = connection_string(query="?application_name=leaving")
    sql.post({"query": "SELECT 1"}, connection=named)
    assert postgres.backends_of("leaving") == 1
    wait_for(lambda: postgres.backends_of("leaving") == 0, "the session to end", timeout=15)


def test_many_simultaneous_requests_share_few_sessions(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    named = connection_string(query="?application_name=crowd")

    def ask(number: int) -> bool:
        with SqlClient(proxy) as client:
            asked = {"query": "SELECT $1::int FROM pg_sleep(0.05)", "params": [number]}
            return bool(client.post(asked, connection=named).json()["rows"] == [[str(number)]])

    with concurrent.futures.ThreadPoolExecutor(100) as threads:
        answers = [threads.submit(ask, number) for number in range(100)]
        wait_for(lambda: postgres.backends_of("crowd") > 5, "some sessions")
        assert postgres.backends_of("crowd") <= 20
        assert all(answer.result() for answer in answers)


def test_a_request_counts_as_a_connection_while_it_runs(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    limits = {"limits": ConnectionLimits(per_role=1)}
    with running_proxy(identity, directory, **limits) as proxy, SqlClient(proxy) as one:
        assert one.rows("SELECT 1") == [["1"]]
        # The connection stays open, and another one may send a request meanwhile.
        with SqlClient(proxy) as other, concurrent.futures.ThreadPoolExecutor() as threads:
            slow = threads.submit(other.rows, "SELECT 2 FROM pg_sleep(1)")
            wait_for(
                lambda: len(proxy.proxy.sessions.of_endpoint(ENDPOINT)) == 1, "the slow client"
            )
            error = one.refusal("SELECT 1", status=503)
            assert (error["code"], error["neon:retryable"]) == ("53300", True)
            assert slow.result() == [["2"]]
            assert one.rows("SELECT 1") == [["1"]]


def test_a_request_waits_for_its_compute(sql: SqlClient, proxy: RunningProxy) -> None:
    proxy.directory.endpoints[ENDPOINT].asleep = True
    with concurrent.futures.ThreadPoolExecutor() as threads:
        answer = threads.submit(sql.rows, "SELECT 1")
        wait_for(lambda: proxy.directory.endpoints[ENDPOINT].wakes == 1, "the wake")
        assert not answer.done()
        proxy.wake_up(ENDPOINT)
        assert answer.result() == [["1"]]


def test_the_query_of_a_client_that_disconnects_is_cancelled(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    named = connection_string(query="?application_name=going")
    running = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'going' AND state = 'active'"
    )
    with SqlClient(proxy) as client, pytest.raises(requests.exceptions.ReadTimeout):
        client.session.post(
            client.url,
            json={"query": "SELECT pg_sleep(600)"},
            headers=headers(named),
            timeout=1,
        )
    wait_for(lambda: postgres.execute(running) == [(0,)], "the query to be cancelled")


def test_a_request_gets_an_error_when_its_endpoint_is_dropped(
    sql: SqlClient, proxy: RunningProxy, postgres: BarePostgres
) -> None:
    with concurrent.futures.ThreadPoolExecutor() as threads:
        answer = threads.submit(sql.refusal, "SELECT pg_sleep(600)", status=503)
        wait_for(lambda: postgres.runs("SELECT pg_sleep(600)"), "the query to run")
        assert proxy.drop(ENDPOINT) == 1
        error = answer.result()
    assert error["code"] == "57P01"
    assert error["message"].startswith("terminating connection due to administrator command: ")
    # Whether the query was executed is unknown.
    assert "neon:retryable" not in error
    assert sql.rows("SELECT 1") == [["1"]]
    assert postgres.answers()


def test_a_compute_that_ends_during_a_query(
    sql: SqlClient, proxy: RunningProxy, postgres: BarePostgres
) -> None:
    named = connection_string(query="?application_name=victim")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(sql.refusal, "SELECT pg_sleep(600)", connection=named)
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'victim' AND state = 'active'"
        )
        wait_for(lambda: postgres.execute(end), "the query to be ended")
        assert asked.result()["code"] == "57P01"


def test_other_clients_are_served_during_a_large_answer(proxy: RunningProxy) -> None:
    big = "SELECT n, md5(n::text), NULL FROM generate_series(1, 600000) n"

    def ask_for_much() -> bytes:
        with SqlClient(proxy) as client:
            # Not parsed, because parsing would block this process, in which the proxy runs too.
            return client.post({"query": big}).content[-100:]

    with (
        proxy.connect(ENDPOINT, user="alice", password=PASSWORDS["alice"]) as connection,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        answer = threads.submit(ask_for_much)
        slowest, start = 0.0, time.monotonic()
        while not answer.done():
            began = time.monotonic()
            connection.execute("SELECT 1")
            slowest = max(slowest, time.monotonic() - began)
        assert b'"rowCount": 600000' in answer.result()
    assert slowest < (time.monotonic() - start) / 4
