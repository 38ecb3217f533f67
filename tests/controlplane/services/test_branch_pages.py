"""Lists of branches: order, pages, search, annotations and count."""

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import Account, Branch, Host, Project
from tests.controlplane.rows import make_project

pytestmark = pytest.mark.slow

NOW = timezone.now()


@pytest.fixture
def many(account: Account, host: Host) -> Project:
    """A project with the branch `branch 0` and six more, of which each two have the same creation
    time."""
    project = make_project(account, host)
    Branch.objects.update(created_at=NOW, updated_at=NOW)
    Branch.objects.bulk_create(
        Branch(
            id=f"br-calm-wren-10000{n}",
            project=project,
            name=f"{'Ab'[n % 2]}{n}",
            current_state="ready",
            created_at=NOW - timedelta(minutes=n // 2 + 1),
            updated_at=NOW + timedelta(minutes=n // 2 + 1),
        )
        for n in range(6)
    )
    return project


def listed(api: DjangoClient, project: Project, **query: Any) -> Any:
    response = api.get(f"/api/v2/projects/{project.id}/branches", query)
    assert response.status_code == 200, response.content
    return response.json()


def refused(api: DjangoClient, project: Project, **query: Any) -> tuple[int, str]:
    response = api.get(f"/api/v2/projects/{project.id}/branches", query)
    return response.status_code, response.json()["message"]


def names(page: Any) -> list[str]:
    return [branch["name"] for branch in page["branches"]]


def cursor(**place: Any) -> str:
    return base64.b64encode(json.dumps(place).encode()).decode()


def test_by_default_all_are_listed_with_the_last_changed_first(
    api: DjangoClient, many: Project
) -> None:
    page = listed(api, many)
    assert names(page) == ["b5", "A4", "b3", "A2", "b1", "A0", "branch 0"]
    assert page["pagination"] == {"sort_by": "updated_at", "sort_order": "DESC"}


@pytest.mark.parametrize(
    ("sort_by", "expected"),
    [
        ("name", ["A0", "A2", "A4", "b1", "b3", "b5", "branch 0"]),
        ("created_at", ["A4", "b5", "A2", "b3", "A0", "b1", "branch 0"]),
        ("updated_at", ["branch 0", "A0", "b1", "A2", "b3", "A4", "b5"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("sort_order", ["asc", "desc", "DESC"])
def test_pages_miss_no_branch_and_repeat_none(
    api: DjangoClient, many: Project, sort_by: str, expected: list[str], limit: int, sort_order: str
) -> None:
    asked: dict[str, Any] = {"sort_by": sort_by, "sort_order": sort_order}
    found: list[str] = []
    page = listed(api, many, limit=limit, **asked)
    while True:
        found += names(page)
        assert page["pagination"]["sort_by"] == sort_by
        assert page["pagination"]["sort_order"] == sort_order.upper()
        following = page["pagination"].get("next")
        if following is None:
            break
        # The cursor contains the order; a request may repeat it.
        page = listed(api, many, limit=limit, cursor=following, **(asked if limit > 1 else {}))
    assert found == (expected if sort_order == "asc" else expected[::-1])


def test_a_cursor_has_the_form_that_clients_know(api: DjangoClient, many: Project) -> None:
    page = listed(api, many, limit=1)
    read = json.loads(base64.b64decode(page["pagination"]["next"]))
    assert read.keys() == {"branch_id", "sort_by", "sort_by_value", "sort_order"}
    assert (read["branch_id"], read["sort_by"]) == (page["branches"][0]["id"], "updated_at")


def test_a_cursor_outlives_its_branch(api: DjangoClient, many: Project) -> None:
    page = listed(api, many, limit=3)
    Branch.objects.filter(name="b3").update(deleted_at=NOW)
    following = listed(api, many, cursor=page["pagination"]["next"])
    assert names(following) == ["A2", "b1", "A0", "branch 0"]


def test_invalid_cursors_are_refused(
    api: DjangoClient, many: Project, account: Account, host: Host
) -> None:
    other = make_project(account, host, size=2)
    place = {
        "branch_id": "br-calm-wren-100001",
        "sort_by": "created_at",
        "sort_by_value": "2026-01-01T00:00:00.000000Z",
        "sort_order": "desc",
    }
    assert names(listed(api, many, cursor=cursor(**place))) == []
    of_another = listed(api, other, limit=1)["pagination"]["next"]
    foreign = [
        *("x", "e30", "bnVsbA==", "W10=", "é", "2026-01-01T00:00:00Z", of_another, "A" * 9000),
        cursor(**{**place, "branch_id": "br-no-where-123456"}),
        cursor(**{**place, "branch_id": 7}),
        cursor(**{**place, "sort_by": "id"}),
        cursor(**{**place, "sort_by": []}),
        cursor(**{**place, "sort_by_value": "yesterday"}),
        cursor(**{**place, "sort_by_value": "2026-01-01T00:00:00"}),
        cursor(**{**place, "sort_by_value": "0001-01-01T00:00:00+23:00"}),
        cursor(**{**place, "sort_by": "name", "sort_by_value": "a\0"}),
        cursor(**{**place, "sort_by": "name", "sort_by_value": "\ud800"}),
        cursor(**{**place, "sort_order": "up"}),
        cursor(**{**place, "more": "x"}),
        base64.b64encode(b"[" * 5000).decode(),
    ]
    for one in foreign:
        status, message = refused(api, many, cursor=one)
        assert (status, "invalid cursor" in message) == (400, True), one
    for asked in ({"sort_by": "name"}, {"sort_order": "asc"}):
        assert refused(api, many, cursor=cursor(**place), **asked)[0] == 400


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 10_001}, {"sort_by": "id"}, {"sort_order": "up"}, {"limit": "x"}],
)
def test_parameters_out_of_range(api: DjangoClient, many: Project, query: Any) -> None:
    status, message = refused(api, many, **query)
    assert (status, next(iter(query)) in message) == (400, True)


def test_search_and_count(api: DjangoClient, many: Project) -> None:
    def count(**query: Any) -> Any:
        return api.get(f"/api/v2/projects/{many.id}/branches/count", query).json()

    for search, expected in (("B", 4), ("br-calm-wren-100002", 1), ("wren", 0), ("%", 0), ("", 7)):
        assert len(listed(api, many, search=search)["branches"]) == expected
        assert count(search=search) == {"count": expected}
    Branch.objects.filter(name="b3").update(deleted_at=NOW)
    assert count() == {"count": 6}
    assert api.get("/api/v2/projects/no-where-12345678/branches/count").status_code == 404


def test_annotations(api: DjangoClient, many: Project) -> None:
    def created(body: Any) -> Any:
        path = f"/api/v2/projects/{many.id}/branches"
        return api.post(path, json.dumps(body), content_type="application/json")

    noted = {"github-commit-ref": "main", "ünïcode": "ß", "empty": "", "lines": "a\r\n\tb\n"}
    made = created({"branch": {"name": "noted"}, "annotation_value": noted})
    assert made.status_code == 201, made.content
    branch = made.json()["branch"]
    expected = {
        "object": {"type": "console/branch", "id": branch["id"]},
        "value": noted,
        "created_at": branch["created_at"],
        "updated_at": branch["created_at"],
    }
    one = api.get(f"/api/v2/projects/{many.id}/branches/{branch['id']}").json()
    assert one["annotation"] == expected
    assert listed(api, many)["annotations"] == {branch["id"]: expected}
    plain = Branch.objects.get(name="A0")
    one = api.get(f"/api/v2/projects/{many.id}/branches/{plain.id}").json()
    assert one["annotation"]["value"] == {}
    empty: list[Any] = [{}, None]
    for nothing in empty:
        assert created({"annotation_value": nothing}).status_code == 201
    too_much: list[Any] = [
        {"a": 1},
        {"a": None},
        {"": "x"},
        {"a" * 129: "x"},
        {"a": "x" * 8193},
        {"a": "x" * 8192, "b": "x" * 8192, "c": "x"},
        {str(n): "" for n in range(51)},
        [],
        "x",
        {"a": "\0"},
        {"a": "\x1b[31m"},
        {"\0": "a"},
        {"a\nb": "a"},
    ]
    for value in too_much:
        refusal = created({"annotation_value": value})
        assert (refusal.status_code, "annotation_value" in refusal.json()["message"]) == (400, True)
