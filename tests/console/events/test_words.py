"""The words for times, durations, sizes, states and shapes."""

import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from console.api.fields import isolated, moment
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
from tests.console.conftest import Misbehaving, Person


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


NAMES = ["\u202egnp", "\u05d0\u05d1\u05d2 12", "a\u2069\u202eb", "\u2067c"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_changes_the_direction_of_nothing_around_it(
    dave: Person, misbehaving: Misbehaving, name: str
) -> None:
    thing = {"id": "x-1", "name": name}
    branch = {**thing, "default": True, "current_state": "ready", "protected": True}
    snapshot = {**thing, "source_branch_id": "x-1"}
    endpoint = {"id": "ep-a", "branch_id": "x-1", "current_state": "idle", "host": "ep-a.example"}
    found = {
        "project": thing, "projects": [thing], "branch": branch, "branches": [branch],
        "snapshots": [snapshot], "roles": [{"name": name}], "endpoints": [endpoint],
        "endpoint": endpoint, "databases": [{"name": name, "owner_name": name}], "operations": [],
        "events": [],
    }  # fmt: skip
    misbehaving.body = json.dumps(found).encode()
    misbehaving.apart["/api_keys"] = (200, json.dumps([{**thing, "id": 1}]).encode())
    for path in (
        *("/", "/api-keys", "/projects/p", "/projects/p/branches", "/projects/p/branches/x-1"),
        *("/projects/p/settings", "/projects/p/endpoints/ep-a", "/projects/p/branches/x-1/delete"),
        *("/projects/p/endpoints/ep-a/reassign", "/projects/p/branches/x-1/schema"),
        f"/projects/p/branches/x-1/role/delete?name={quote(name)}",
    ):
        html = dave.get(path).content.decode()
        assert name in html, path
        # Attributes, options, titles and commands are texts of their own: nothing is beside a name.
        shown = re.sub(r'\s[a-z-]+="[^"]*"|<option[^<]*</option>', "", html)
        shown = re.sub(r"<(title|svg|script|pre).*?</\1>", "", shown, flags=re.DOTALL)
        for place in re.finditer(re.escape(name), shown):
            before = shown[place.start() - 80 : place.start()]
            assert before.endswith(("<bdi>", "\u2068")), (path, before)
        assert not re.search(r'="[^"]*<bdi>|<title>[^<]*<bdi|&lt;bdi', html), path


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_sentence_is_closed_with_it(name: str) -> None:
    """Each isolate that is opened is closed, in order, so that what follows is outside of all."""
    depth = 0
    for character in f"{isolated(name)}":
        depth = max(0, depth + (character in "\u2066\u2067\u2068") - (character == "\u2069"))
        assert depth or character == "\u2069"
    assert depth == 0
    assert isolated(name) == name
    assert type(isolated("Ärger")) is str
