"""When a pooled client has no state in its pooler, and which messages would have to be repeated to
another pooler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.proxy.pooling.conversation import Conversation
from controlplane.proxy.wire.messages import message
from tests.proxy.protocol.test_messages import CUTS, cut_up

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
    """Return a conversation in which the client ("c") and the pooler ("p") have sent these
    messages."""
    conversation = Conversation()
    for who, data in said:
        (conversation.sent if who == "c" else conversation.answered)(data)
    return conversation


def test_a_client_is_idle_before_and_after_its_transactions() -> None:
    assert held().resendable == b""
    assert held(("c", query()), ("p", ROW + complete() + ready())).resendable == b""


@pytest.mark.parametrize("status", [b"T", b"E"])
def test_in_a_transaction_the_client_is_not_idle(status: bytes) -> None:
    assert held(("c", query()), ("p", complete() + ready(status))).resendable is None


def test_messages_that_may_have_been_executed_are_not_repeated() -> None:
    for acts in (query(), BIND + EXECUTE, message(b"F", b"\0" * 12)):
        assert held(("c", acts)).resendable is None
        # They may be repeated if it is known that no backend received them.
        assert held(("c", acts)).unanswered == acts


def test_messages_with_a_partial_answer_are_not_repeated() -> None:
    assert held(("c", query()), ("p", ROW[:3])).unanswered is None
    assert held(("c", parse() + FLUSH), ("p", PARSED)).resendable is None


def test_messages_that_have_no_effect_yet_are_repeated() -> None:
    for sent in (query()[:-1], parse(b"s") + BIND, parse() + SYNC, EXECUTE[:7]):
        assert held(("c", sent)).resendable == sent
    assert not held(("c", query()[:-1])).awaits_answer
    assert held(("c", parse() + SYNC)).awaits_answer


def test_long_messages_are_not_stored_for_repetition() -> None:
    assert held(("c", message(b"Q", bytes(1_000_000))[:-1])).resendable is None


def test_every_request_has_to_be_answered() -> None:
    pipeline = [("c", query() * 3), ("p", complete() + ready()), ("p", complete() + ready())]
    assert held(*pipeline).resendable is None
    assert held(*pipeline, ("p", complete() + ready())).resendable == b""
    # The second request was sent before the first was answered.
    assert held(("c", query() + query()[:6]), ("p", complete() + ready())).resendable is None


@pytest.mark.parametrize("blindly", [True, False])
def test_a_copy_ends_with_its_answer(blindly: bool) -> None:
    copy = parse() + BIND + EXECUTE + SYNC
    said = [("c", copy), ("p", PARSED + COPY_IN), ("c", COPY_DATA + COPY_DONE + SYNC)]
    if blindly:
        # Postgres ignores the Sync within the copy.
        said = [("c", copy), ("p", PARSED), ("p", COPY_IN), ("c", SYNC + COPY_DONE + SYNC)]
    assert held(*said).resendable is None
    assert held(*said, ("p", complete() + ready())).resendable == b""
    simple = [("c", query()), ("p", COPY_IN), ("c", COPY_DATA + COPY_DONE)]
    assert held(*simple, ("p", complete() + ready())).resendable == b""


def test_an_answer_without_a_request_makes_the_conversation_unusable() -> None:
    conversation = held(("p", ready()))
    assert conversation.resendable is None
    conversation.sent(query())
    conversation.answered(ready())
    assert conversation.resendable is None


def test_a_client_that_has_left_or_got_an_error_is_not_parked() -> None:
    assert held(("c", TERMINATE)).has_terminated
    assert held(("c", TERMINATE)).resendable is None
    of_pgbouncer = message(b"E", b"SFATAL\0C08P01\0Mclient_idle_timeout\0\0")
    for last in (FATAL, of_pgbouncer):
        assert held(("p", last)).resendable is None
    assert held(("c", query()), ("p", ERROR + ready())).resendable == b""


def test_prepared_statements_are_known_once_the_pooler_has_confirmed_them() -> None:
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


def test_a_client_with_too_many_statements_is_not_parked() -> None:
    conversation = Conversation()
    for number in range(40):
        conversation.sent(parse(b"s%d" % number, b" " * 10_000) + SYNC)
        conversation.answered(PARSED + ready())
    assert conversation.resendable is None
    assert conversation.statements == {}


def test_the_number_of_remembered_closed_names_is_limited() -> None:
    conversation = Conversation()
    for number in range(40):
        conversation.sent(close(b"%d" % number + b" " * 10_000))
    assert not conversation._pending


def test_a_long_unnamed_statement_is_not_stored() -> None:
    long = parse(b"", b" " * 500_000)
    conversation = held(("c", long + SYNC), ("p", PARSED + ready()))
    assert conversation.resendable == b""


def test_parameters_have_the_poolers_latest_values() -> None:
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
def test_the_result_does_not_depend_on_how_bytes_arrive(
    talk: list[tuple[bytes, bytes]], cuts: list[int], others: list[int]
) -> None:
    """Whether all requests precede the answers, or each has its answer first."""
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
