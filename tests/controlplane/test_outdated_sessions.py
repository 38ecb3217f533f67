"""Which sessions the proxy ends after a role of their endpoint has changed. The tests in
`tests/connections` make the changes themselves, by the API or by SQL."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from controlplane.models.connecting import RoleState
from controlplane.proxy.authentication.access_rules import AccessRules
from controlplane.proxy.directory.changes import end_outdated_sessions
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.interface import RoleIdentity

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
