"""Runs of many operations, such as the move of a project with many active endpoints."""

import json
from urllib.parse import parse_qsl, urlsplit

from console.operations.run_views import MAX_CHAIN_OPERATIONS
from tests.console.conftest import Misbehaving, Person
from tests.console.operations.test_run_page import RUN, told
from tests.console.pages import Page


def answer_with_chain_of(api: Misbehaving, length: int) -> None:
    """Answer as a move of a project with many active endpoints, in pages of what is asked for."""
    move = told(id="op-0", action="move_project", title="Move the project")
    others = [told(id=f"op-{n}", action="start_compute") for n in range(1, length)]
    newest_first = [*others[::-1], move]

    def respond(path: str) -> bytes:
        asked = dict(parse_qsl(urlsplit(path).query))
        start = int(asked.get("cursor", "0"))
        found = newest_first[start : start + int(asked.get("limit", "1"))]
        body = {
            "operations": found,
            "pagination": {"cursor": str(start + len(found))},
            "operation": next((one for one in newest_first if path.endswith(one["id"])), move),
            "branches": [],
            "endpoints": [],
            "events": [],
            "project": {"id": "p"},
        }
        return json.dumps(body).encode()

    api.respond = respond


def test_a_long_run_is_shown_from_its_first_operation_on(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with_chain_of(misbehaving, MAX_CHAIN_OPERATIONS)
    page = Page(dave.get(RUN))
    assert "Move the project" in page.text
    assert page.html.count('<tbody id="operation-') == MAX_CHAIN_OPERATIONS
    assert "are shown" not in page.text
    # The steps of the first operation are among those that are read.
    assert any(one.endswith("/operations/op-0") for one in misbehaving.asked)


def test_a_run_of_too_many_operations_says_that_the_first_are_left_out(
    dave: Person, misbehaving: Misbehaving
) -> None:
    answer_with_chain_of(misbehaving, MAX_CHAIN_OPERATIONS + 1)
    page = Page(dave.get(RUN))
    assert page.html.count('<tbody id="operation-') == MAX_CHAIN_OPERATIONS
    assert f"Only the last {MAX_CHAIN_OPERATIONS} operations are shown" in page.text
