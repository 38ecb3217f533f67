"""The checks of input: bodies from browsers, and odd answers of a server."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from console.api.answers import MAX_MESSAGE_LENGTH
from console.api.bounded_http import read_json
from console.api.errors import BrokenOff, NonsenseAnswer, Unprocessable, Unreachable
from console.api.fields import Page as Listed
from console.api.fields import moment, number, own_id, text
from console.api.resources.branches import BranchCalls
from console.api.resources.projects import Project
from console.api.transport import Server, Transport
from console.endpoints.connection_strings import Target
from console.forms.fields import ConfirmForm
from tests.console.browser import Browser
from tests.console.conftest import Misbehaving
from tests.console.pages import Page


def test_the_bytes_read_of_a_form_are_limited() -> None:
    sent = {"sql": "x" * (3 << 20)}
    answer = Browser().post("/projects/p/query", sent, headers={"Origin": "http://testserver"})
    assert answer.status_code == 413
    assert "Requests can have at most 1 MiB" in Page(answer).text


def test_lone_surrogates_in_text_are_replaced() -> None:
    assert text(read_json(rb'{"name": "a\ud800b"}'), "name") == "a\ufffdb"
    assert text({"name": 5}, "name") == ""


def test_numbers_are_finite_and_bounded() -> None:
    found = [10**400, -(10**400), float("inf"), float("nan"), True, "5", None, 5]
    assert [number({"n": one}, "n", -1) for one in found] == [-1, -1, -1, -1, -1, -1, -1, 5]


def test_times_that_some_time_zone_cannot_represent_are_refused() -> None:
    assert moment({"at": "9999-12-31T23:59:59Z"}, "at") is None
    assert moment({"at": "0001-01-01T00:00:00Z"}, "at") is None
    assert moment({"at": "2026-11-22T00:00:00Z"}, "at") is not None


@pytest.mark.parametrize("odd", ["a.b", "a/b", "", " ", "ž", 7])
def test_ids_that_cannot_be_part_of_an_address_are_refused(odd: Any) -> None:
    assert own_id({"id": "quiet-heron-1"}) == "quiet-heron-1"
    with pytest.raises(NonsenseAnswer):
        own_id({"id": odd})


def test_the_next_page_is_requested_if_pages_are_shorter_than_the_limit() -> None:
    def read(count: int, *, limit: int) -> str:
        items = [{"id": f"p{n}"} for n in range(count)]
        data = {"projects": items, "pagination": {"cursor": "more"}}
        return Listed.read(data, "projects", Project.read, limit=limit).cursor

    assert read(100, limit=400) == "more"
    assert read(99, limit=400) == ""
    assert read(25, limit=25) == "more"
    assert read(24, limit=25) == ""


def test_an_answer_without_a_diff_is_not_equality(
    misbehaving: Misbehaving,
) -> None:
    calls = BranchCalls(Transport("key", Server("", misbehaving.url)))
    misbehaving.body = b'{"diff": ""}'
    assert calls.schema_difference("p", "b", base_id="c", database="d") == ""
    misbehaving.body = b"{}"
    with pytest.raises(NonsenseAnswer):
        calls.schema_difference("p", "b", base_id="c", database="d")


def test_the_length_of_an_error_message_is_bounded(misbehaving: Misbehaving) -> None:
    misbehaving.refuse(422, "invalid: " + "a (" * 8000)
    with pytest.raises(Unprocessable) as refused:
        Transport("key", Server("", misbehaving.url)).get("projects")
    assert len(refused.value.message) == MAX_MESSAGE_LENGTH


@contextlib.contextmanager
def hanging_up(answers_from: int) -> Iterator[str]:
    """Yields the address of a server that closes the connection of each request before the one of
    this number, unanswered."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def do_GET(self) -> None:
            paths.append(self.path)
            if len(paths) >= answers_from:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"projects": []}')

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    with contextlib.closing(server.socket):
        yield f"http://127.0.0.1:{server.server_port}/api/v2"
        server.shutdown()
        thread.join()


@pytest.fixture
def hangs_up() -> Iterator[str]:
    with hanging_up(answers_from=1000) as url:
        yield url


def test_a_request_without_an_answer_may_have_been_executed(hangs_up: str) -> None:
    with pytest.raises(BrokenOff) as broken:
        Transport("key", Server("", hangs_up)).send("POST", "projects", body={})
    assert "may have been made" in broken.value.advice


def test_a_request_that_only_reads_has_changed_nothing(hangs_up: str) -> None:
    with pytest.raises(BrokenOff) as broken:
        Transport("key", Server("", hangs_up)).get("projects")
    assert broken.value.advice == "Try again in a moment."


def test_a_request_that_found_no_connection_in_time_was_not_sent(settings: Any) -> None:
    settings.MANAGEMENT_API_TIMEOUT = 0.2
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as held:
        address = full.getsockname()
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        api = Transport("key", Server("", f"http://127.0.0.1:{address[1]}"))
        for _ in range(2):
            with pytest.raises(Unreachable) as unreachable:
                api.send("POST", "projects", body={})
            assert type(unreachable.value) is Unreachable
            assert "Nothing was changed" in unreachable.value.advice


def test_a_read_whose_connection_breaks_is_sent_again_once() -> None:
    with hanging_up(answers_from=2) as url:
        assert Transport("key", Server("", url)).get("projects") == {"projects": []}


def test_ipv6_addresses_have_brackets() -> None:
    uri = "postgresql://ann:secret@[::1]:5432/shop?sslmode=require"
    assert Target.read(uri).url() == uri


def test_a_name_with_spaces_at_its_ends_can_be_confirmed() -> None:
    assert ConfirmForm({"typed": " odd "}, expected=" odd ").is_valid()
    assert ConfirmForm({"typed": " pasted "}, expected="pasted").is_valid()
    assert not ConfirmForm({"typed": "odd"}, expected=" odd ").is_valid()
