"""The list and the picture of many branches. Drawing them needs no service."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import RequestFactory

from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.branches.picture import MAX_NAMED, NARROW, WIDE, Drawn, Picture, describe, draw
from console.branches.rows import (
    MAX_DRAWN_DEPTH,
    MAX_TREE_WIDTH,
    BranchRow,
    branch_rows,
    with_tree_lines,
)
from console.branches.views import PAGE_SIZE, BranchList, branch_list
from console.endpoints.rows import endpoint_row
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


def branch(number: int, parent: int | None, **fields: Any) -> Branch:
    return Branch.read(
        {
            "id": f"br-{number}",
            "name": f"b{number}",
            "parent_id": f"br-{parent}" if parent is not None else None,
            "created_at": (NOON + timedelta(minutes=number)).isoformat(),
            "current_state": "ready",
            "default": number == 0,
            **fields,
        }
    )


def perched(branches: Sequence[Branch], *numbers: int, **fields: Any) -> list[Any]:
    found = [
        Endpoint.read({"id": f"ep-{number}", "branch_id": f"br-{number}", **fields})
        for number in numbers
    ]
    return [endpoint_row(each, branches, []) for each in found]


def star(count: int) -> list[Branch]:
    """Return branches that are all children of the first."""
    return [branch(0, None), *(branch(number, 0) for number in range(1, count))]


def chain(count: int) -> list[Branch]:
    """Return branches of which each is the child of the one before."""
    return [branch(number, number - 1 if number else None) for number in range(count)]


def rows(branches: Sequence[Branch], endpoints: Sequence[Any] = ()) -> list[BranchRow]:
    return branch_rows(branches, endpoints)


def test_branches_are_sorted_by_the_numbers_in_their_names() -> None:
    names = ("b100", "b2", "b10", "B1", "a", "b2-10", "b2-9", "10", "9")
    found = branch_list(
        RequestFactory().get("/?sort=name"),
        rows([branch(n, None, name=name) for n, name in enumerate(names)]),
    )
    shown = [row.branch.name for row in found.rows]
    assert shown == ["9", "10", "a", "B1", "b2", "b2-9", "b2-10", "b10", "b100"]


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        (1, [1, 2, 3, 0, 21]),
        (2, [1, 2, 3, 4, 0, 21]),
        (10, [1, 0, 8, 9, 10, 11, 12, 0, 21]),
        (21, [1, 0, 19, 20, 21]),
    ],
)
def test_every_page_links_to_the_first_the_last_and_its_neighbours(
    page: int, numbers: list[int]
) -> None:
    request = RequestFactory().get(f"/?sort=name&page={page}")
    found = branch_list(request, rows(star(20 * PAGE_SIZE + 1))).listing
    assert [number for number, _ in found.numbers] == numbers
    assert (21, "sort=name&page=21") in found.numbers


def test_each_level_below_six_has_its_own_indentation() -> None:
    drawn = with_tree_lines(rows(chain(20)))
    assert [row.level for row in drawn] == list(range(20))
    widths = [row.tree_lines.width for row in drawn if row.tree_lines]
    assert widths == sorted(set(widths))
    assert len(widths) == 19
    assert widths[-1] <= MAX_TREE_WIDTH + 2


def test_a_level_that_cannot_be_drawn_is_given_in_words() -> None:
    drawn = with_tree_lines(rows(chain(MAX_DRAWN_DEPTH + 5)))
    assert not drawn[MAX_DRAWN_DEPTH].cells.level
    assert drawn[-1].cells.level
    assert drawn[-1].tree_lines
    assert drawn[-1].tree_lines.width <= MAX_TREE_WIDTH + 2


def test_a_line_continues_while_siblings_follow() -> None:
    family = [branch(0, None), branch(1, 0), branch(2, 1), branch(3, 0)]
    drawn = with_tree_lines(rows(family))
    assert [row.branch.name for row in drawn] == ["b0", "b1", "b2", "b3"]
    assert [row.tree_lines.path if row.tree_lines else "" for row in drawn] == [
        "",
        "M8.0 0V40M8.0 20h10.0",
        "M8.0 0V40M28.0 0V20h10.0",
        "M8.0 0V20h10.0",
    ]


def test_branches_that_are_each_others_parents_are_listed() -> None:
    strange = [branch(0, None), branch(1, 2), branch(2, 1), branch(3, 3)]
    assert {row.branch.id for row in rows(strange)} == {"br-0", "br-1", "br-2", "br-3"}


def listed(rows: Sequence[BranchRow], **asked: str) -> BranchList:
    return branch_list(RequestFactory().get("/", asked), rows)


def test_pages_are_short_and_keep_the_line_to_the_parent() -> None:
    found = listed(rows(chain(60)), page="2")
    assert len(found.rows) == PAGE_SIZE
    assert found.rows[0].branch.name == f"b{PAGE_SIZE}"
    assert [row.branch.name for row in found.above][-1] == f"b{PAGE_SIZE - 1}"
    assert found.rows[0].tree_lines
    assert not found.is_first_of_all
    assert listed(rows(chain(60))).is_first_of_all


def test_searching_finds_names_ids_and_endpoints() -> None:
    branches = star(40)
    found = listed(rows(branches, perched(branches, 7)), search="EP-7")
    assert [row.branch.name for row in found.rows] == ["b7"]
    assert not found.is_tree
    assert not found.rows[0].tree_lines
    assert listed(rows(branches), search="br-39").listing.found == 1
    assert listed(rows(branches), search="nothing").rows == []


def test_sorting() -> None:
    branches = [branch(0, None, logical_size=5), branch(1, 0, logical_size=9), branch(2, 1)]
    family = rows(branches, perched(branches, 2, current_state="active"))

    def by(sort: str) -> list[str]:
        return [row.branch.name for row in listed(family, sort=sort).rows]

    assert by("newest") == ["b2", "b1", "b0"]
    assert by("size") == ["b1", "b0", "b2"]
    assert by("endpoint") == ["b2", "b0", "b1"]
    assert by("name") == by("no such") == by("descent") == ["b0", "b1", "b2"]


def drawn(family: Sequence[BranchRow]) -> list[Drawn]:
    return [Drawn.of(row) for row in family]


def all_drawn(picture: Picture) -> int:
    return len(picture.perches) + sum(len(flock.marks) for flock in picture.flocks)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("family", [star(1), star(8), star(40), star(400), chain(12), chain(400)])
def test_a_picture_of_any_tree_stays_small_and_within_its_frame(
    family: list[Branch], width: int
) -> None:
    picture = draw(drawn(rows(family)), "p", width=width)
    assert all_drawn(picture) == len(family)
    assert len(picture.perches) <= MAX_NAMED
    for perch in picture.perches:
        assert 0 < perch.x < perch.end <= width
        assert 20 <= perch.y <= picture.height
    for flock in picture.flocks:
        assert all(0 < mark.x <= width - 20 for mark in flock.marks)
        assert all(0 < mark.y < picture.height for mark in flock.marks)
    assert picture.height < 1400


def test_no_two_names_overlap() -> None:
    family = [*star(6), *(branch(number, number % 5) for number in range(6, 13))]
    for width in (WIDE, NARROW):
        perches = draw(drawn(rows(family)), "p", width=width).perches
        assert len({(perch.x, perch.y) for perch in perches}) == len(perches)
        for one in perches:
            for other in perches:
                if one is not other and one.y == other.y and one.x < other.x:
                    assert one.end <= other.x


def test_birds_show_the_states() -> None:
    branches = star(4)
    endpoints = [
        *perched(branches, 0, current_state="active"),
        *perched(branches, 1, current_state="idle"),
        *perched(branches, 2, disabled=True),
    ]
    family = rows(branches, endpoints)
    birds = [perch.bird for perch in draw(drawn(family), "p", width=WIDE).perches]
    assert birds == ["active", "idle", "stopped", ""]
    words = "4 branches, 2 levels deep: 1 active, 1 idle, 1 stopped, 1 without an endpoint."
    assert describe(drawn(family)) == words
    assert describe(drawn(rows(star(1)))) == "1 branch: 1 without an endpoint."


def test_branches_with_children_are_labelled_first() -> None:
    family = [*star(100), branch(200, 50), branch(201, 200)]
    named = {perch.name for perch in draw(drawn(rows(family)), "p", width=WIDE).perches}
    assert named == {"b0", "b50", "b200", "b201"}


def test_names_of_any_length_and_kind(dave: Person, misbehaving: Misbehaving) -> None:
    misbehaving.body = b"""{
        "project": {"id": "p"}, "operations": [], "endpoints": [], "snapshots": [],
        "branches": [{"id": "br-1", "name": "<b>%s", "default": true},
                     {"id": "br-2", "name": "\\u202egnp", "parent_id": "br-1"}]
    }""" % (b"x" * 250)
    page = Page(dave.get("/projects/p/branches"))
    assert "<b>x" not in page.html
    assert len(re.findall("<svg class=.tree-picture", page.html)) == 2
