"""Which connections the API may end to make room for others, by what their clients owe it."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client as DjangoClient
from django.test import RequestFactory
from gunicorn.http.errors import LimitRequestHeaders

from controlplane.api.http import auth
from controlplane.api.http.server import JsonErrorsWorker


class Connection:
    """A client's socket."""

    timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds


@pytest.fixture
def worker() -> JsonErrorsWorker:
    made = object.__new__(JsonErrorsWorker)
    made.awaited, made.cfg = {}, SimpleNamespace(timeout=180)
    return made


@pytest.mark.parametrize(
    ("has_key", "streaming", "while_served", "while_answered"),
    [(False, False, True, True), (True, False, False, True), (True, True, False, False)],
)
def test_only_requests_with_a_valid_key_are_safe_while_they_are_served(
    worker: JsonErrorsWorker,
    has_key: bool,
    streaming: bool,
    while_served: bool,
    while_answered: bool,
) -> None:
    client = Connection()
    seen = []

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if has_key:
            environ["perch.admitted"]()
        seen.append(client in worker.awaited)
        return SimpleNamespace(streaming=streaming)

    worker._await(client, "192.0.2.1")
    environ = {"gunicorn.socket": client, "REMOTE_ADDR": "2001:db8::7"}
    worker._watched(application)(environ, lambda *started: None)
    assert (*seen, client in worker.awaited) == (while_served, while_answered)
    assert client.timeout == (180 if has_key else None)
    assert worker.awaited.get(client, "2001:db8::/64") == "2001:db8::/64"


@pytest.mark.parametrize("headers", [[("COOKIE", "a;" * 4000)] * 5, [("CONTENT-TYPE", ";" * 2000)]])
def test_a_long_head_is_refused_before_it_is_used(
    worker: JsonErrorsWorker, headers: list[tuple[str, str]]
) -> None:
    """Django takes long for the parameters of a content type: 0.07 s for 8 KiB."""
    request = SimpleNamespace(headers=headers)
    with pytest.raises(LimitRequestHeaders):
        worker.handle_request(None, request, Connection(), ("192.0.2.1", 1))


def test_clients_are_counted_by_their_network() -> None:
    first, second = (RequestFactory().get("/", REMOTE_ADDR=f"2001:db8::{n}") for n in (1, 2))
    assert auth._network(first) == auth._network(second) == "address 2001:db8::/64"


def test_a_long_body_without_a_key_is_refused(client: DjangoClient, db: None) -> None:
    body = b" " * ((1 << 20) + 1)
    answer = client.post("/hosts/join", body, content_type="application/json")
    assert (answer.status_code, answer.json()["message"][:11]) == (413, "a body may ")
