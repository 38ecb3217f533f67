"""Requests over HTTP use the route that was found last, as long as it is recent and nothing of the
endpoint has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.models.connecting import RouteRow, ServedHost
from controlplane.proxy.directory import route_lookup
from controlplane.proxy.directory.changes import ComputeStates
from controlplane.proxy.directory.compute_logins import ComputeLogins, RoleLogin
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.route_lookup import RouteLookup
from controlplane.proxy.wire.errors import LoginUnknown

ENDPOINT, OID = "ep-calm-river-000001", 16_384
KEY = "q" * 43 + "="
VERIFIER = f"SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==${KEY}:{KEY}"


class Asked:
    """A lookup of one role of an endpoint whose compute runs, with what it asks counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.answers = 0.0, 0, True
        self.meanwhile: Callable[[], object] = lambda: None
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(route_lookup, "time", clock)
        self.lookup = RouteLookup(
            cast(ControlDatabase, SimpleNamespace(is_unavailable=False, ask=self._row)),
            ServedHost("host", "region", "state", "place"),
            cast(ComputeStates, SimpleNamespace(find=self._state)),
            cast(ComputeLogins, SimpleNamespace(ask=self._login, synchronize_soon=self._nothing)),
        )
        for cache in (self.lookup.cache, self.lookup.found):
            cache.resume()

    async def _row(self, _: Callable[..., Awaitable[object]]) -> RouteRow:
        return RouteRow(
            *(
                ENDPOINT,
                1,
                "unlimited",
                False,
                False,
                "br-1",
                True,
                7,
                VERIFIER,
                False,
                None,
                OID,
                False,
            ),
            *(None, [], False, "{}"),
        )

    async def _state(self, _: str) -> Any:
        return SimpleNamespace(run="first")

    async def _login(self, *_: object, timeout: float) -> RoleLogin:
        self.asked += 1
        await asyncio.sleep(0)
        self.meanwhile()
        if not self.answers:
            raise LoginUnknown
        return RoleLogin(OID, True, False, VERIFIER)

    def _nothing(self, *_: object) -> None:
        pass


def test_a_route_is_recent_for_a_second_and_then_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        asked = Asked(monkeypatch)
        assert asked.lookup.recent(ENDPOINT, "alice") is None
        route = await asked.lookup.find(ENDPOINT, "alice")
        assert route is not None
        assert route.verifier == VERIFIER
        asked.now = 0.99
        assert asked.lookup.recent(ENDPOINT, "alice") == route
        assert asked.lookup.recent(ENDPOINT, "bob") is None
        assert asked.asked == 1
        asked.now = 1.0
        assert asked.lookup.recent(ENDPOINT, "alice") is None
        await asked.lookup.find(ENDPOINT, "alice")
        assert asked.lookup.recent(ENDPOINT, "alice") == route

    asyncio.run(go())


def test_a_login_always_asks_the_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        asked = Asked(monkeypatch)
        for _ in range(3):
            await asked.lookup.find(ENDPOINT, "alice")
        assert asked.asked == 3

    asyncio.run(go())


@pytest.mark.parametrize("when", ["afterwards", "meanwhile"])
@pytest.mark.parametrize("event", ["a change", "the loss of notifications"])
def test_no_route_from_before_a_change_is_recent(
    event: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        asked = Asked(monkeypatch)
        found = asked.lookup.found

        def happen() -> None:
            found.invalidate(ENDPOINT) if event == "a change" else found.suspend()

        if when == "meanwhile":
            asked.meanwhile = happen
        await asked.lookup.find(ENDPOINT, "alice")
        if when == "afterwards":
            assert asked.lookup.recent(ENDPOINT, "alice") is not None
            happen()
        assert asked.lookup.recent(ENDPOINT, "alice") is None

    asyncio.run(go())


def test_a_route_that_the_compute_has_not_confirmed_is_not_recent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        asked = Asked(monkeypatch)
        asked.answers = False
        assert await asked.lookup.find(ENDPOINT, "alice") is not None
        assert asked.lookup.recent(ENDPOINT, "alice") is None

    asyncio.run(go())
