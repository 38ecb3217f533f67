"""API keys: listing, creating, revoking."""

import re

from tests.console.browser import Browser
from tests.console.conftest import Person
from tests.console.pages import Page


def test_it_works(alice: Person) -> None:
    answer = alice.post("/api-keys/new", {"name": "laptop"})
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    found = re.search(r"<code>(\S{20,})</code>", answer.content.decode())
    assert found
    key = found[1]
    friend = Browser()
    assert friend.post("/sign-in", {"key": key}).status_code == 302

    page = Page(alice.get("/api-keys"))
    assert key not in page.html
    assert "just now" in page.row("laptop")


def test_a_name_is_required_and_a_refused_name_is_kept(alice: Person) -> None:
    assert alice.post("/api-keys/new", {"name": " "}).status_code == 422
    answer = alice.post("/api-keys/new", {"name": "n" * 100})
    assert answer.status_code == 422
    assert Page(answer).fields["name"] == "n" * 100
    assert list(answer.context["form"].errors) == ["name"]


def test_names_with_markup_are_text(alice: Person) -> None:
    alice.api.post("/api_keys", {"key_name": "<b>x</b>"})
    assert "<b>x</b>" in Page(alice.get("/api-keys")).row("x")
    assert "<b>x</b>" not in alice.get("/api-keys").content.decode()


def test_revoking(alice: Person) -> None:
    made = alice.api.post("/api_keys", {"key_name": "old"})
    url = f"/api-keys/{made['id']}/revoke"
    assert "“old”" in Page(alice.get(url)).text
    assert alice.post(url)["Location"] == "/api-keys"
    names = [row.split(" | ")[0] for row in Page(alice.get("/api-keys")).rows()]
    assert "old" not in names
    assert Browser().post("/sign-in", {"key": made["key"]}).status_code == 422


def test_the_own_key_is_marked_and_its_revocation_says_that_it_signs_out(alice: Person) -> None:
    made = alice.api.post("/api_keys", {"key_name": "laptop"})
    page = Page(alice.get("/api-keys"))
    assert "your key" in page.row("tests")
    assert "your key" not in page.row("laptop")
    (own,) = (key["id"] for key in alice.api.get("/api_keys") if key["name"] == "tests")
    assert "you will be signed out" in Page(alice.get(f"/api-keys/{own}/revoke")).text
    assert "sign" not in Page(alice.get(f"/api-keys/{made['id']}/revoke")).text.partition("stop")[2]


def test_another_users_key_stays(alice: Person, bob: Person) -> None:
    made = alice.api.post("/api_keys", {"key_name": "mine"})
    answer = bob.post(f"/api-keys/{made['id']}/revoke")
    assert answer.status_code == 422
    assert "mine" in Page(alice.get("/api-keys")).text
