"""When nothing of a pooled client's is left with its pooler, and what it would have to be told
again elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.pooling.conversation import Conversation
from controlplane.proxy.wire.messages import message
from tests.proxy.test_message_stream import CUTS, cut_up

SYNC, FLUSH, TERMINATE = (message(kind, b"") for kind in (b"S", b"H", b"X"))
EXECUTE = message(b"E", b"\0\0\0\0\0")
BIND = message(b"B", b"\0\0\0\0\0\0\0\0")
COPY_DATA, COPY_DONE = message(b"d", b"1\n"), message(b"c", b"")
PARSED, CLOSED, COPY_IN = message(b"1", b""), message(b"3", b""), message(b"G", b"\0\0\0")
ROW, ERROR = message(b"D", b"\0\0"), message(b"E", b"SERROR\0VERROR\0C22012\0Mno\0\0")
FATAL = message(b"E", b"SFATAL\0VFATAL\0C57P01\0Mgone\0\0")


def query(text: bytes = b"SELECT 1") -> bytes:
    return message(b"Q", text + b"\0")


def parse(name: bytes = b"", text: bytes = b"SELECT 1") -> bytes:
    return message(b"P", name + b"\0" + text + b"\0\0\0")


def close(name: bytes) -> bytes:
    return message(b"C", b"S" + name + b"\0")


def ready(status: bytes = b"I") -> bytes:
    return message(b"Z", status)


def complete(tag: bytes = b"SELECT 1") -> bytes:
    return message(b"C", tag + b"\0")


def held(*said: tuple[str, bytes]) -> Conversation:
    """One where the client ("c") and the pooler ("p") have said this."""
    conversation = Conversation()
    for who, data in said:
        (conversation.sent if who == "c" else conversation.answered)(data)
    return conversation


def test_a_client_is_idle_before_and_after_its_transactions() -> None:
    assert held().resendable == b""
    assert held(("c", query()), ("p", ROW + complete() + ready())).resendable == b""


@pytest.mark.parametrize("status", [b"T", b"E"])
def test_in_a_transaction_it_cannot_leave(status: bytes) -> None:
    assert held(("c", query()), ("p", complete() + ready(status))).resendable is None


def test_what_may_have_been_begun_is_not_said_again() -> None:
    for acts in (query(), BIND + EXECUTE, message(b"F", b"\0" * 12)):
        assert held(("c", acts)).resendable is None
        # Where it is known that nobody took it, it may be.
        assert held(("c", acts)).unanswered == acts


def test_what_was_answered_in_part_is_not_said_again() -> None:
    assert held(("c", query()), ("p", ROW[:3])).unanswered is None
    assert held(("c", parse() + FLUSH), ("p", PARSED)).resendable is None


def test_what_cannot_act_yet_is_said_again() -> None:
    for sent in (query()[:-1], parse(b"s") + BIND, parse() + SYNC, EXECUTE[:7]):
        assert held(("c", sent)).resendable == sent
    assert not held(("c", query()[:-1])).awaits_answer
    assert held(("c", parse() + SYNC)).awaits_answer


def test_much_is_not_kept_to_be_said_again() -> None:
    assert held(("c", message(b"Q", bytes(1_000_000))[:-1])).resendable is None


def test_every_request_is_waited_for() -> None:
    pipeline = [("c", query() * 3), ("p", complete() + ready()), ("p", complete() + ready())]
    assert held(*pipeline).resendable is None
    assert held(*pipeline, ("p", complete() + ready())).resendable == b""
    # The second has begun before the first was answered.
    assert held(("c", query() + query()[:6]), ("p", complete() + ready())).resendable is None


@pytest.mark.parametrize("blindly", [True, False])
def test_a_copy_is_over_with_its_answer(blindly: bool) -> None:
    copy = parse() + BIND + EXECUTE + SYNC
    said = [("c", copy), ("p", PARSED + COPY_IN), ("c", COPY_DATA + COPY_DONE + SYNC)]
    if blindly:
        # Postgres ignores the Sync within the copy.
        said = [("c", copy), ("p", PARSED), ("p", COPY_IN), ("c", SYNC + COPY_DONE + SYNC)]
    assert held(*said).resendable is None
    assert held(*said, ("p", complete() + ready())).resendable == b""
    simple = [("c", query()), ("p", COPY_IN), ("c", COPY_DATA + COPY_DONE)]
    assert held(*simple, ("p", complete() + ready())).resendable == b""


def test_an_answer_to_nothing_ends_all_trust() -> None:
    conversation = held(("p", ready()))
    assert conversation.resendable is None
    conversation.sent(query())
    conversation.answered(ready())
    assert conversation.resendable is None


def test_who_has_left_or_was_told_of_the_end_does_not_come_back() -> None:
    assert held(("c", TERMINATE)).has_terminated
    assert held(("c", TERMINATE)).resendable is None
    of_pgbouncer = message(b"E", b"SFATAL\0C08P01\0Mclient_idle_timeout\0\0")
    for last in (FATAL, of_pgbouncer):
        assert held(("p", last)).resendable is None
    assert held(("c", query()), ("p", ERROR + ready())).resendable == b""


def test_prepared_statements_are_known_once_they_are_there() -> None:
    said = [("c", parse(b"s") + parse() + SYNC)]
    assert held(*said).statements == {}
    conversation = held(*said, ("p", PARSED * 2 + ready()))
    assert conversation.statements == {b"s": parse(b"s")[5:]}
    conversation.sent(close(b"s") + message(b"C", b"Ps\0") + SYNC)
    conversation.answered(CLOSED * 2 + ready())
    assert conversation.statements == {}


def test_a_statement_that_was_skipped_is_not_known() -> None:
    conversation = held(
        ("c", parse(b"bad") + parse(b"skipped") + SYNC + parse(b"good") + SYNC),
        ("p", ERROR + ready() + PARSED + ready()),
    )
    assert list(conversation.statements) == [b"good"]
    assert conversation.resendable == b""


@pytest.mark.parametrize("tag", [b"DEALLOCATE ALL", b"DISCARD ALL"])
def test_all_statements_can_be_forgotten(tag: bytes) -> None:
    conversation = held(("c", parse(b"s") + SYNC), ("p", PARSED + ready()))
    conversation.sent(query(tag))
    conversation.answered(complete(tag) + ready())
    assert conversation.statements == {}


def test_a_client_with_more_statements_than_are_kept_ends_with_its_pooler() -> None:
    conversation = Conversation()
    for number in range(40):
        conversation.sent(parse(b"s%d" % number, b" " * 10_000) + SYNC)
        conversation.answered(PARSED + ready())
    assert conversation.resendable is None
    assert conversation.statements == {}


def test_names_of_what_is_closed_are_bounded_too() -> None:
    conversation = Conversation()
    for number in range(40):
        conversation.sent(close(b"%d" % number + b" " * 10_000))
    assert not conversation._pending


def test_a_long_unnamed_statement_is_not_kept() -> None:
    long = parse(b"", b" " * 500_000)
    conversation = held(("c", long + SYNC), ("p", PARSED + ready()))
    assert conversation.resendable == b""


def test_parameters_are_the_poolers_last_word() -> None:
    status = [message(b"S", b"TimeZone\0" + zone + b"\0") for zone in (b"UTC", b"Asia/Tokyo")]
    assert held(("p", status[0]), ("p", status[1])).parameters == {b"TimeZone": b"Asia/Tokyo"}


TALK = st.lists(
    st.sampled_from(
        [
            (query(), ROW + complete() + ready()),
            (parse(b"s%d") + BIND + EXECUTE + SYNC, PARSED + ROW + complete() + ready()),
            (parse() + SYNC, ERROR + ready()),
            (query(b"BEGIN"), complete(b"BEGIN") + ready(b"T")),
        ]
    ),
    max_size=8,
)


@given(TALK, CUTS, CUTS)
def test_it_makes_no_difference_how_bytes_arrive(
    talk: list[tuple[bytes, bytes]], cuts: list[int], others: list[int]
) -> None:
    """All is asked before anything is answered, or each in its turn."""
    asked, answered = (b"".join(part) for part in zip(*talk, strict=True)) if talk else (b"", b"")
    pipelined = Conversation()
    for piece in filter(None, cut_up(asked, cuts)):
        pipelined.sent(piece)
    for piece in filter(None, cut_up(answered, others)):
        pipelined.answered(piece)
    in_turn = held(*[(who, data) for pair in talk for who, data in zip("cp", pair, strict=True)])
    assert pipelined.resendable == in_turn.resendable
    assert pipelined.statements == in_turn.statements
    assert (in_turn.resendable == b"") == (not talk or talk[-1][1].endswith(ready()))
