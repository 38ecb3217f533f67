"""A branch's page while parts of the API refuse, fail, answer invalidly, or are not offered."""

import json
from typing import Any

import pytest

from tests.console.conftest import Misbehaving, Person
from tests.console.pages import Page

URL = "/projects/p/branches/b"
WELL: dict[str, Any] = {
    "project": {"id": "p"},
    "branch": {"id": "b", "name": "dev"},
    "branches": [{"id": "b", "name": "dev"}, {"id": "a", "name": "main", "default": True}],
    "endpoints": [{"id": "e", "branch_id": "b", "host": "e.example"}],
    "endpoint": {"id": "e", "branch_id": "b", "host": "e.example"},
    "roles": [{"name": "owner"}],
    "databases": [{"name": "shop", "owner_name": "owner"}],
    "snapshots": [{"id": "s", "name": "kept", "source_branch_id": "b", "timestamp": "2027-01-31"}],
    "operations": [],
    "events": [],
    "history": {"earliest": "2026-01-30T12:00:00Z", "latest": "2026-01-31T12:00:00Z"},
}
BAD = {
    "refused": (422, b'{"message": "so it is"}'),
    "forbidden": (403, b'{"message": "so it is"}'),
    "busy": (423, b'{"message": "so it is"}'),
    "too many": (429, b'{"message": "so it is"}'),
    "broken": (500, b'{"message": "so it is"}'),
    "HTML": (200, b"<html>"),
    "another shape": (200, b'{"roles": 1, "databases": {}, "snapshots": [1], "events": "x"}'),
    "without names": (200, b'{"roles": [{}], "databases": [{}], "snapshots": [{}]}'),
}


@pytest.fixture
def api(dave: Person, misbehaving: Misbehaving) -> Misbehaving:
    misbehaving.body = json.dumps(WELL).encode()
    return misbehaving


def test_it_works(dave: Person, api: Misbehaving) -> None:
    page = Page(dave.get(URL))
    assert "owner" in page.row("Reveal password")
    assert "shop | owner" in page.row("Change database shop")
    assert "kept" in page.row("Restore kept")


@pytest.mark.parametrize("failure", BAD)
@pytest.mark.parametrize("part", ["roles", "databases", "snapshots", "events", "history"])
def test_a_part_that_fails_does_not_affect_the_others(
    dave: Person, api: Misbehaving, part: str, failure: str
) -> None:
    api.apart = {f"/{part}": BAD[failure]}
    answer = dave.get(URL)
    assert answer.status_code == 200
    page = Page(answer)
    assert "e.example" in page.text
    assert ("Reveal password" in page.text) == (part != "roles")
    assert ("Change database shop" in page.text) == (part != "databases")
    assert ("Restore kept" in page.text) == (part != "snapshots")
    assert ("Go back to a moment" in page.text) == (part != "history")
    # The page says who created what if that is known, and shows nothing otherwise.
    assert page.html.count('role="alert"') == (part != "events")
    assert "No roles yet" not in page.text
    assert "No databases yet" not in page.text


def test_a_server_without_snapshots_and_events(dave: Person, api: Misbehaving) -> None:
    nothing = (404, b'{"message": "there is no such path"}')
    api.apart = {"/snapshots": nothing, "/events": nothing, "/history": nothing}
    page = Page(dave.get(URL))
    assert "Snapshot" not in page.text
    assert "Go back to a moment" not in page.text
    assert "alert" not in page.html
    page = Page(dave.get("/projects/p/branches"))
    assert "Snapshot" not in page.text


@pytest.mark.parametrize("part", ["roles", "databases", "snapshots"])
def test_a_key_that_is_revoked_meanwhile_leads_to_the_sign_in_page(
    dave: Person, api: Misbehaving, part: str
) -> None:
    api.apart = {f"/{part}": (401, b"{}")}
    assert dave.get(URL)["Location"].startswith("/sign-in")


@pytest.mark.thorough
@pytest.mark.parametrize("failure", BAD)
def test_a_deletion_says_what_could_not_be_read(
    dave: Person, api: Misbehaving, failure: str
) -> None:
    api.apart = dict.fromkeys(("/roles", "/databases", "/snapshots", "/endpoints"), BAD[failure])
    page = Page(dave.get(f"{URL}/delete"))
    assert page.fields["typed"] == ""
    shown = ["Databases", "Roles"]
    assert [f"Deleted: {what} unavailable" in page.text for what in shown] == [True] * 2


@pytest.mark.parametrize("failure", ["refused", "forbidden", "busy", "broken", "HTML"])
def test_a_comparison_that_fails_keeps_the_choice(
    dave: Person, api: Misbehaving, failure: str
) -> None:
    api.apart = {"/compare_schema": BAD[failure]}
    answer = dave.get(f"{URL}/schema")
    assert answer.status_code == 200
    page = Page(answer)
    assert 'role="alert"' in page.html
    assert page.fields["base"] == "a"


def test_a_server_that_does_not_compare_schemas(dave: Person, api: Misbehaving) -> None:
    api.apart = {"/compare_schema": (404, b'{"message": "not found"}')}
    assert "Not supported by this server" in Page(dave.get(f"{URL}/schema")).text


def test_an_answer_without_a_password_shows_an_error(dave: Person, api: Misbehaving) -> None:
    for path in ("role/password?name=r", "role/new-password?name=r"):
        answer = dave.post(f"{URL}/{path}")
        assert answer.status_code == 422
        assert "unexpected response" in Page(answer).text
    answer = dave.post(f"{URL}/new-role", {"name": "r"})
    assert answer.status_code == 422


def test_an_error_about_a_setting_names_its_field(dave: Person, api: Misbehaving) -> None:
    words = "autoscaling_limit_min_cu 3 is more than autoscaling_limit_max_cu 2"
    api.refuse(422, words)
    answer = dave.post("/projects/p/endpoints/e/settings", {"min_cu": "3", "max_cu": "2"})
    page = Page(answer)
    assert "“Minimum size” 3 CU is more than “Maximum size” 2 CU." in page.text
    assert "utoscaling_limit" not in page.text
    assert page.html.index('id="id_min_cu_error"') < page.html.index('name="max_cu"')


def test_deleting_an_endpoint_names_its_host_and_its_branch(dave: Person, api: Misbehaving) -> None:
    page = Page(dave.get("/projects/p/endpoints/e/delete"))
    assert "Delete endpoint e" in page.text
    assert "Deleted: Host e.example" in page.text
    assert "Branch dev kept" in page.text


def test_deleting_a_project_names_what_is_in_it(dave: Person, api: Misbehaving) -> None:
    page = Page(dave.get("/projects/p/delete"))
    endpoint = "1 endpoint with all connections, which are closed at once: e"
    for words in ("2 branches dev, main", endpoint, "1 snapshot kept"):
        assert f"Deleted: {words}" in page.text, words
