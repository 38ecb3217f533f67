"""The words for times, durations, sizes, states and shapes."""

from datetime import UTC, datetime, timedelta

import pytest

from console.api.fields import moment
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Operation
from console.pages.statuses import (
    ACTIVE,
    ENDPOINT_STATES,
    IDLE,
    OPERATION_STATUSES,
    STOPPED,
    endpoint_state,
    pending_word,
)
from console.templatetags.console_tags import NOTHING, ago, duration, sentence, size
from console.templatetags.reasons import reason


def endpoint(**fields: object) -> Endpoint:
    return Endpoint.read({"id": "ep-a", **fields})


def operation(action: str, status: str) -> Operation:
    return Operation.read({"id": "o", "endpoint_id": "ep-a", "action": action, "status": status})


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(None, NOTHING), (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (61_000, "1 min 1 s"),
     (7_260_000, "2 h 1 min"), (180_000_000, "2 d 2 h")],
)  # fmt: skip
def test_durations(milliseconds: int | None, words: str) -> None:
    assert duration(milliseconds) == words


OPERATOR = "the next start tries again; if this persists, tell this host's operator"


@pytest.mark.parametrize(
    ("error", "action", "plain"),
    [
        ("no disk; ask for room", "start_compute", None),
        ("", "", None),
        ("pg_dump made no progress for 60 s", "create_branch", None),
        (
            "postgres: could not find the database system\nExpected to find it in the directory "
            f'"data",\nbut could not open file "pg_control": No such file; {OPERATOR}',
            "start_compute",
            "The branch's data is damaged or incomplete. The next start tries again; if this "
            "persists, tell this host's operator.",
        ),
        (
            'invalid value for parameter "work_mem": "lots"; change the endpoint\'s settings',
            "apply_config",
            "Postgres does not accept the setting “work_mem”. Change the endpoint's settings.",
        ),
        (
            'connection to server on socket "s" failed: FATAL:  the database system is starting up',
            "check_availability",
            "Postgres was starting or stopping.",
        ),
        (
            "pg_restore: error: could not execute query: ERROR:  odd\nCommand was: CREATE …",
            "create_branch",
            "The branch's data could not be copied: odd.",
        ),
        ("FATAL:  odd", "teleport", "Postgres reported an error: odd."),
        ("pg_ctl: could not start server", "start_compute", "Postgres did not start."),
        (
            "error: query failed: ERROR:  permission denied for table t\nquery was: LOCK TABLE t",
            "",
            "Postgres reported an error: permission denied for table t.",
        ),
        ("role is in use:\n\nby ann", "", "Role is in use."),
    ],
)
def test_of_raw_words_the_reason_comes_first(error: str, action: str, plain: str | None) -> None:
    found = reason(error, action)
    assert (found.plain, found.raw) == ((error, "") if plain is None else (plain, error))


@pytest.mark.parametrize(
    ("count", "words"),
    [(None, NOTHING), (0, "0 B"), (1500, "1.5 kB"), (42_000_000, "42 MB"), (5 * 10**12, "5.0 TB")],
)  # fmt: skip
def test_sizes(count: int | None, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(
    ("past", "words"),
    [(timedelta(seconds=-30), "just now"), (timedelta(seconds=40), "40 s ago"),
     (timedelta(minutes=3), "3 min ago"), (timedelta(hours=5), "5 h ago"),
     (timedelta(days=2), "2 d ago")],
)  # fmt: skip
def test_times(past: timedelta, words: str) -> None:
    assert words in ago(datetime.now(UTC) - past)
    assert ago(None) == NOTHING


def test_a_zero_timestamp_is_no_time() -> None:
    for zero in ("2000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "", "soon"):
        assert moment({"at": zero}, "at") is None
    assert moment({"at": "2026-01-02T03:04:05Z"}, "at") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_states() -> None:
    assert endpoint_state(endpoint(current_state="active")) is ACTIVE
    assert endpoint_state(endpoint(current_state="idle")) is IDLE
    assert endpoint_state(endpoint(current_state="init")) is IDLE
    assert endpoint_state(endpoint(current_state="active", disabled=True)) is STOPPED


def test_no_shape_stands_for_two_states() -> None:
    statuses = [*ENDPOINT_STATES, *OPERATION_STATUSES.values()]
    shapes = {status.label: status.shape for status in statuses}
    assert shapes["OK"] != shapes["Error"] != shapes["Waiting"] != shapes["In progress"]
    assert len({ACTIVE.shape, IDLE.shape, STOPPED.shape}) == 3


def test_the_oldest_unfinished_operation_is_the_pending_one() -> None:
    chain = [operation("suspend_compute", "scheduling"), operation("apply_config", "running")]
    assert pending_word(endpoint(), chain) == "applying…"
    assert pending_word(endpoint(), [operation("start_compute", "finished")]) == ""
    assert pending_word(endpoint(pending_state="active"), []) == "starting…"
    assert pending_word(endpoint(), [operation("teleport", "running")]) == "working…"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("project not found", "Project not found"),
        ("no, it is not", "No, it is not"),
        ("http://127.0.0.1:1 refused", "http://127.0.0.1:1 refused"),
        ("ep-calm-river-1 is busy", "ep-calm-river-1 is busy"),
        ("work_mem: too large", "work_mem: too large"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_its_first_word_is_an_address_or_a_name(
    words: str, shown: str
) -> None:
    assert sentence(words) == shown
