"""The requests of parallel calls, which are sent together."""

from collections.abc import Sequence
from typing import Any

import pytest

from console.api import batches
from console.api.batches import Answer
from console.api.errors import APIError, Unreachable
from console.api.parallel import each_or_none, in_parallel, one_before_other
from console.api.servers import Server
from console.api.transport import Transport
from tests.console.conftest import Misbehaving


class Sending:
    """Sends batches and remembers their paths."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.problem: APIError | None = None
        self.has_batches = True

    def __call__(self, paths: Sequence[str]) -> Sequence[Answer]:
        self.sent.append(list(paths))
        if self.problem:
            raise self.problem
        return [Answer(200, path) for path in paths] if self.has_batches else ()

    def get(self, path: str) -> object:
        beside = batches.present()
        answer = beside.get(path, self) if beside else None
        return answer.body if answer else f"alone: {path}"


@pytest.fixture
def sending() -> Sending:
    return Sending()


def test_it_works(sending: Sending) -> None:
    assert in_parallel(lambda: sending.get("/a"), lambda: sending.get("/b")) == ("/a", "/b")
    assert sending.sent == [["/a", "/b"]]


def test_a_call_alone_is_no_batch(sending: Sending) -> None:
    assert sending.get("/a") == "alone: /a"
    assert each_or_none(sending.get, ["/a"]) == ["alone: /a"]
    assert not sending.sent


def test_calls_are_not_awaited_that_have_no_request_left(sending: Sending) -> None:
    """Of three calls, one sends nothing and one sends two requests."""
    found = in_parallel(
        lambda: None,
        lambda: [sending.get("/a"), sending.get("/next")],
        lambda: sending.get("/b"),
    )
    assert found == (None, ["/a", "alone: /next"], "/b")
    assert sending.sent == [["/a", "/b"]]


def test_calls_within_a_call_are_sent_in_its_place(sending: Sending) -> None:
    def inner() -> tuple[object, object]:
        return in_parallel(lambda: sending.get("/b"), lambda: sending.get("/c"))

    found = in_parallel(lambda: sending.get("/a"), inner, lambda: sending.get("/d"))
    assert found == ("/a", ("/b", "/c"), "/d")
    assert sending.sent == [["/a", "/b", "/c", "/d"]]


def test_a_call_that_has_made_others_within_sends_the_next_alone(sending: Sending) -> None:
    def inner() -> object:
        in_parallel(lambda: sending.get("/b"), lambda: sending.get("/c"))
        return sending.get("/next")

    assert in_parallel(lambda: sending.get("/a"), inner) == ("/a", "alone: /next")


def test_one_before_other_takes_one_request(sending: Sending) -> None:
    found = one_before_other(
        lambda: sending.get("/a"), lambda: sending.get("/b"), answers_in_order=lambda: True
    )
    assert (found, sending.sent) == (("/a", "/b"), [["/a", "/b"]])


def test_one_before_other_without_batches_which_only_the_first_request_shows(
    sending: Sending,
) -> None:
    sending.has_batches = False
    known = iter([True, False])
    made: list[str] = []

    def get(path: str) -> None:
        sending.get(path)
        made.append(path)

    one_before_other(lambda: get("/a"), lambda: get("/b"), answers_in_order=lambda: next(known))
    assert made[2:] == ["/a", "/b"]


def test_more_than_a_request_can_hold_is_sent_alone(sending: Sending) -> None:
    long = "/" + "x" * batches.MOST_CHARACTERS
    assert each_or_none(sending.get, ["/a", long]) == ["alone: /a", f"alone: {long}"]
    many = [f"/{number}" for number in range(100)]
    assert each_or_none(sending.get, many) == [f"alone: {path}" for path in many]
    assert not sending.sent


def test_the_failure_of_the_whole_is_the_failure_of_each(sending: Sending) -> None:
    sending.problem = Unreachable("No connection.")
    assert each_or_none(sending.get, ["/a", "/b"]) == [None, None]


def test_without_batches_each_is_sent_alone(sending: Sending) -> None:
    sending.has_batches = False
    assert each_or_none(sending.get, ["/a", "/b"]) == ["alone: /a", "alone: /b"]


def transport_to(misbehaving: Misbehaving) -> Transport:
    return Transport("a-key", Server("", misbehaving.url), has_batches=True)


def both(transport: Transport) -> tuple[object, object]:
    return in_parallel(lambda: transport.get("a"), lambda: transport.get("b"))


def test_a_server_that_lacks_batches_is_not_asked_again(
    misbehaving: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    misbehaving.body = b"{}"
    transport = transport_to(misbehaving)
    assert both(transport) == ({}, {})
    monkeypatch.setattr(Transport, "_get_batch", None)
    assert both(transport) == ({}, {})


@pytest.mark.parametrize(
    "answer", [b"[]", b'{"responses": [{"status": 200}]}', b'{"responses": [1, 2]}', b"{"]
)
def test_a_batch_without_an_answer_for_each_counts_as_none(
    misbehaving: Misbehaving, answer: bytes
) -> None:
    misbehaving.batch, misbehaving.body = answer, b"{}"
    assert both(transport_to(misbehaving)) == ({}, {})
    assert not batches.may_have_batches(misbehaving.url)


def test_each_answer_counts_by_its_own_status(misbehaving: Misbehaving) -> None:
    misbehaving.batch = b"""{"responses": [
        {"status": 200, "body": {"id": 1}}, {"status": 404, "body": {"message": "gone"}}]}"""
    found: list[Any] = each_or_none(transport_to(misbehaving).get, ["a", "b"])
    assert sorted(found, key=str) == [None, {"id": 1}]
