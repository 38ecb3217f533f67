"""The palette finds what is in the account's other projects too."""

import json
from typing import Any

import pytest

from console.account.palette import MAX_SEARCHED_PROJECTS
from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

LOADS = 'hx-get="/go?elsewhere=1&amp;project=p"'


@pytest.fixture
def projects(misbehaving: Misbehaving) -> list[dict[str, str]]:
    """Dave's projects: one is open, and the other has a branch with an endpoint."""
    found = [{"id": "p", "name": "shop"}, {"id": "q", "name": "Aviary"}]
    tell(misbehaving, "/projects", projects=found)
    tell(misbehaving, "/projects/p", project=found[0])
    for project_id, name in (("p", "main"), ("q", "feature")):
        path = f"/projects/{project_id}"
        branch, endpoint = f"br-{project_id}", f"ep-{project_id}"
        tell(misbehaving, f"{path}/branches", branches=[{"id": branch, "name": name}])
        tell(misbehaving, f"{path}/endpoints", endpoints=[{"id": endpoint, "branch_id": branch}])
    return found


def tell(server: Misbehaving, path: str, **answer: Any) -> None:
    server.apart[path] = (200, json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("feature", "feature br-q in Aviary branch ep-q on feature in Aviary endpoint"),
        ("br-q", "feature br-q in Aviary branch"),
        ("ep-q", "ep-q on feature in Aviary endpoint"),
    ],
)
def test_branches_and_endpoints_of_other_projects_are_found(
    dave: Person, projects: list[dict[str, str]], query: str, found: str
) -> None:
    page = Page(dave.get(f"/go?project=p&q={query}"))
    assert f"Find {found} No matches." in page.text
    assert LOADS not in page.html


def test_the_open_project_comes_first(dave: Person, projects: list[dict[str, str]]) -> None:
    text = Page(dave.get("/go?project=p&q=branch")).text
    assert text.index("main br-p") < text.index("feature br-q in Aviary")


def test_other_projects_are_read_once_somebody_types(
    dave: Person, misbehaving: Misbehaving, projects: list[dict[str, str]]
) -> None:
    opened = Page(dave.htmx_get("/go?project=p", target="dialog"))
    assert LOADS in opened.html
    assert "br-q" not in opened.html
    assert not misbehaving.asked_for("/projects/q/")
    more = Page(dave.htmx_get("/go?elsewhere=1&project=p", target="goals"))
    assert more.html.startswith("<li>")
    assert "feature br-q in Aviary" in more.text
    assert "br-p" not in more.html


def test_only_so_many_projects_are_read(
    dave: Person, misbehaving: Misbehaving, projects: list[dict[str, str]]
) -> None:
    many = [{"id": f"x{number}", "name": "x"} for number in range(3 * MAX_SEARCHED_PROJECTS)]
    tell(misbehaving, "/projects", projects=projects + many)
    misbehaving.body = b'{"branches": [], "endpoints": []}'
    assert "br-q" in Page(dave.htmx_get("/go?elsewhere=1&project=p", target="goals")).html
    assert misbehaving.asked_for("/branches") == MAX_SEARCHED_PROJECTS
    assert misbehaving.asked_for("/endpoints") == MAX_SEARCHED_PROJECTS


def test_a_project_that_cannot_be_read_is_left_out(
    dave: Person, misbehaving: Misbehaving, projects: list[dict[str, str]]
) -> None:
    misbehaving.apart["/projects/q/endpoints"] = (500, b"{}")
    assert "br-q" not in Page(dave.get("/go?project=p&q=feature")).html
