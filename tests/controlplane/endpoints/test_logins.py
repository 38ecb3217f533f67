"""Logins at the proxy: which password is valid, what the compute and the database are asked, and
which sessions end after a role has changed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from controlplane.compute.catalog.reading import placeholder_of
from controlplane.models.connecting import RoleState, RouteRow
from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.directory import control_database
from controlplane.proxy.directory.changes import end_outdated_sessions
from controlplane.proxy.directory.compute_logins import ComputeLogins, RoleLogin, _CatalogSession
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.host_calls import HostCalls
from controlplane.proxy.directory.interface import RoleIdentity
from controlplane.proxy.directory.route_lookup import (
    RouteLookup,
    is_in_rows,
    is_older,
    is_reserved,
    verifier_by_compute,
    verifier_by_row,
)
from controlplane.proxy.wire.errors import LoginUnknown


def verifier(letter: str) -> str:
    key = letter * 43 + "="
    return f"SCRAM-SHA-256$4096:c2FsdA==${key}:{key}"


ROWS, SQLS = verifier("R"), verifier("S")
ROW = RouteRow(
    endpoint_id="ep-a",
    account_id=1,
    plan="free",
    disabled=False,
    pooler_enabled=False,
    branch_id="br-a",
    is_active=True,
    role_id=7,
    verifier=ROWS,
    no_login=False,
    valid_until=None,
    compute_oid=100,
    password_is_newer=False,
    sessions_end_at=None,
    doomed=[],
    protected=False,
    access="{}",
)
NOBODY = replace(ROW, role_id=None, verifier=None, no_login=None, compute_oid=None)
LOGIN = RoleLogin(oid=100, can_login=True, has_expired=False, password=placeholder_of(ROWS))

# The row, the compute's answer, which verifier is valid, and whether the rows are up to date.
CASES: dict[str, tuple[RouteRow, RoleLogin | None, str | None, bool]] = {
    "as the row says": (ROW, LOGIN, ROWS, True),
    "a password set by SQL": (ROW, replace(LOGIN, password=SQLS), SQLS, False),
    "a password removed by SQL": (ROW, replace(LOGIN, password=None), None, False),
    "a password kept by MD5": (ROW, replace(LOGIN, password="md5" + "0" * 32), None, False),
    "a login revoked by SQL": (ROW, replace(LOGIN, can_login=False), None, False),
    "a login given by SQL": (replace(ROW, no_login=True), LOGIN, ROWS, False),
    "a password that has run out": (ROW, replace(LOGIN, has_expired=True), None, True),
    "dropped by SQL": (ROW, None, None, False),
    "made by SQL": (NOBODY, replace(LOGIN, password=SQLS), SQLS, False),
    "nobody": (NOBODY, None, None, True),
    "a placeholder without a row": (NOBODY, LOGIN, None, False),
    "yet to be made": (replace(ROW, compute_oid=None), None, ROWS, True),
    "made before there were placeholders": (
        replace(ROW, compute_oid=None),
        replace(LOGIN, password=None),
        ROWS,
        False,
    ),
    "made again by SQL": (ROW, replace(LOGIN, oid=101, password=SQLS), SQLS, False),
    "reset by the API since": (
        replace(ROW, password_is_newer=True),
        replace(LOGIN, password=SQLS, has_expired=True),
        ROWS,
        True,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_which_password_is_valid(case: Any) -> None:
    row, login, held, known = case
    assert (verifier_by_compute(row, login), is_in_rows(row, login)) == (held, known)


def test_without_an_answer_of_the_compute_the_row_decides() -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert verifier_by_row(ROW) == ROWS
    for change in ({"no_login": True}, {"valid_until": past}, {"verifier": ""}):
        assert verifier_by_row(replace(ROW, **change)) is None


def test_another_placeholder_means_that_the_row_is_outdated() -> None:
    assert not is_older(ROW, LOGIN)
    assert is_older(ROW, replace(LOGIN, password=placeholder_of(SQLS)))
    assert not is_older(replace(ROW, password_is_newer=True), LOGIN)
    assert ROWS not in str(LOGIN.password)


@pytest.mark.parametrize("name", ["pg_x", "perch_platform", "pgbouncer", "é" * 32, "a\0b"])
def test_no_client_can_log_in_as(name: str) -> None:
    assert is_reserved(name)


class SlowLine(_CatalogSession):
    """A session whose answers are increasing numbers, each given when the test allows it."""

    def __init__(self) -> None:
        super().__init__("ep-calm-river-000001", "br-1", 1, 0.0)
        self.put: list[object] = []
        self.may_answer = asyncio.Semaphore(0)

    async def _execute(self, *question: Any) -> int:
        number = len(self.put)
        self.put.append(question[1])
        await self.may_answer.acquire()
        return number

    def login(self, role: str) -> "asyncio.Task[int]":
        return asyncio.ensure_future(self.ask("SELECT %s", (role,), None, timeout=5.0))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_waiting_clients_share_a_question_that_was_not_sent_yet() -> None:
    async def go() -> None:
        line = SlowLine()
        under_way = line.login("alice")
        await turns()
        # The question in progress may have been answered before these clients came.
        waiting = [line.login("alice") for _ in range(5)]
        other = line.login("bob")
        await turns()
        waiting.append(line.login("alice"))
        for _ in range(3):
            line.may_answer.release()
        assert await under_way == 0
        assert [await one for one in waiting] == [1] * 6
        assert await other == 2
        assert line.put == [("alice",), ("alice",), ("bob",)]

    asyncio.run(go())


def test_a_question_that_only_waits_for_others_does_not_show_that_the_compute_hangs() -> None:
    async def go() -> None:
        line = SlowLine()
        under_way = line.login("alice")
        await turns()
        with pytest.raises(LoginUnknown):
            await line.ask("SELECT %s", ("made up",), None, timeout=0.1)
        later = line.login("bob")
        for _ in range(2):
            line.may_answer.release()
        assert (await under_way, await later) == (0, 1)
        assert line.put == [("alice",), ("bob",)]

    asyncio.run(go())


def test_a_failed_question_is_asked_again_for_the_next_client() -> None:
    class DeadLine(SlowLine):
        async def _execute(self, *question: Any) -> int:
            self.put.append(question[1])
            raise OSError

    async def go() -> None:
        line = DeadLine()
        for _ in range(2):
            with pytest.raises(LoginUnknown):
                await line.login("alice")
        assert len(line.put) == 2

    asyncio.run(go())


def test_the_catalogs_of_an_account_leave_threads_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_database, "close_old_connections", lambda: None)
    freed = threading.Event()

    class SlowHost:
        def call(self, name: str, endpoint_id: str, *, account_id: str) -> None:
            if endpoint_id.startswith("ep-slow"):
                freed.wait(20)

    async def go() -> None:
        unused: Any = None
        logins = ComputeLogins(unused, cast(HostCalls, SlowHost()))
        slow = [asyncio.create_task(logins.synchronize(f"ep-slow-{n}", 1)) for n in range(40)]
        await asyncio.sleep(0.1)
        try:
            assert await asyncio.wait_for(logins.synchronize("ep-quick", 2), 5)
        finally:
            freed.set()
        assert all(await asyncio.gather(*slow))

    asyncio.run(go())


MISSING = "ep-not-there-000002"


class Questions:
    """A database that has no endpoint, and remembers for which roles it was asked."""

    is_unavailable = False

    def __init__(self) -> None:
        self.roles: list[str] = []

    async def ask(self, find: Any) -> None:
        self.roles.append(find.keywords["role"])


def test_a_name_is_looked_up_before_its_role_is_known() -> None:
    """If a proxy knew the hosts only of names that are in use, the handshakes that it passes on
    would tell which names these are."""

    async def go() -> None:
        database: Any = Questions()
        unused: Any = None
        lookup = RouteLookup(database, unused, unused, unused)
        lookup.cache.resume()
        for _ in range(2):
            assert await lookup.of_any_role(MISSING) is None
        assert database.roles == [""]
        # What was read for no role says nothing of a role.
        assert await lookup.find(MISSING, "alice") is None
        lookup.cache.invalidate(MISSING)
        assert await lookup.find(MISSING, "alice") is None
        assert await lookup.of_any_role(MISSING) is None
        assert database.roles == ["", "alice", "alice"]

    asyncio.run(go())


ENDPOINT = "ep-calm-river-000001"


class FakeClient:
    def __init__(self, row: int, role: str = "alice") -> None:
        self.role = role
        self.identity = RoleIdentity(row)
        self.is_parked = False
        self.ended = ""

    def confirm_again(self) -> bool:
        return False

    def end_login(self, reason: str) -> None:
        self.ended = reason


class FakeClients:
    def __init__(self, *clients: FakeClient) -> None:
        self.connected = list(clients)

    def of_endpoint(self, endpoint_id: str) -> list[FakeClient]:
        assert endpoint_id == ENDPOINT
        return list(self.connected)

    def drop(self, endpoint_id: str, because: str) -> int:
        raise AssertionError

    def enforce_rules(self, endpoint_id: str, rules: AccessRules | None) -> int:
        raise AssertionError

    def park(self, endpoint_id: str, because: str) -> None:
        raise AssertionError


class FakeDatabase:
    """Gives the answers in order. Before each answer, it calls the function that stands for what
    happens while the proxy waits for that answer."""

    def __init__(self, *answers: tuple[Callable[[], None], dict[str, RoleState]]) -> None:
        self._answers: Iterator[tuple[Callable[[], None], dict[str, RoleState]]] = iter(answers)

    async def ask(self, _: Callable[[Any], Awaitable[Any]]) -> dict[str, RoleState]:
        meanwhile, answer = next(self._answers)
        meanwhile()
        return answer


def check(database: FakeDatabase, clients: FakeClients) -> None:
    asyncio.run(end_outdated_sessions(cast(ControlDatabase, database), ENDPOINT, clients))


def role(row: int, name: str = "alice") -> RoleState:
    return RoleState(name, row, None, no_login=False, sessions_end_at=None)


def nothing() -> None:
    pass


def test_a_deleted_roles_session_is_ended() -> None:
    alice, bob = FakeClient(1), FakeClient(2, "bob")
    check(FakeDatabase((nothing, {"bob": role(2, "bob")})), FakeClients(alice, bob))
    assert (alice.ended, bob.ended) == ("the role was deleted", "")


def test_a_session_of_a_role_that_was_created_again_continues() -> None:
    """The answer is from before the role was created again. The new session began after that."""
    old, new = FakeClient(1), FakeClient(2)
    clients = FakeClients(old)
    check(FakeDatabase((lambda: clients.connected.append(new), {})), clients)
    assert (old.ended, new.ended) == ("the role was deleted", "")


def test_a_session_that_was_confirmed_meanwhile_is_checked_again() -> None:
    """The first answer is older than the confirmation, so it says nothing about the session."""
    alice = FakeClient(1)

    def confirm() -> None:
        alice.identity = RoleIdentity(2)

    clients = FakeClients(alice)
    check(FakeDatabase((confirm, {}), (nothing, {"alice": role(2)})), clients)
    assert alice.ended == ""
    check(FakeDatabase((nothing, {})), clients)
    assert alice.ended == "the role was deleted"


def test_a_session_that_has_ended_meanwhile_is_ignored() -> None:
    alice = FakeClient(1)
    clients = FakeClients(alice)
    check(FakeDatabase((clients.connected.clear, {})), clients)
    assert alice.ended == ""
