"""How to connect: forms to paste, the password on demand, an endpoint that wakes."""

import re
from html import unescape
from typing import Any

import pytest

from console.endpoints.connection_strings import Target, in_style
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page
from tests.support.stack import Stack


def password_of(person: Person, shop: Shop) -> str:
    path = f"/projects/{shop.id}/branches/{shop.main_id}/roles/neondb_owner/reveal_password"
    return str(person.api.get(path)["password"])


def string_in(answer: Any) -> str:
    """Return the connection that a page offers to copy."""
    found = re.search(r"<pre><code>(.*?)</code></pre>", answer.content.decode(), re.DOTALL)
    assert found, "no connection on the page"
    return unescape(found[1])


def test_it_works(stack: Stack, carol: Person, still_shop: Shop) -> None:
    assert (
        f"{still_shop.endpoint_url}/connect" in carol.get(still_shop.endpoint_url).content.decode()
    )
    answer = carol.get(f"{still_shop.endpoint_url}/connect")
    assert answer["Cache-Control"] == "no-store"
    url = string_in(answer)
    host, option = f"localhost:{stack.proxy_port}", f"endpoint%3D{still_shop.endpoint_id}"
    assert url == f"postgresql://neondb_owner:********@{host}/neondb?options={option}"
    assert password_of(carol, still_shop) not in answer.content.decode()


@pytest.mark.parametrize("named", ["", "main", "dev"])
def test_it_names_the_branch_first(carol: Person, still_shop: Shop, named: str) -> None:
    """Also if the address names no branch, or one that the endpoint was on before."""
    branch_id = {"main": still_shop.main_id, "dev": still_shop.dev_id}.get(named, "")
    address = f"{still_shop.endpoint_url}/connect?branch={branch_id}"
    page = Page(carol.get(address))
    assert "<title>Connect to main · Perch</title>" in page.html
    assert "<h1>Connect to main</h1>" in page.html
    assert f"Connect to main through endpoint {still_shop.endpoint_id}" in page.text
    dialog = Page(carol.htmx_get(address, target="dialog"))
    assert f"Connect to main through endpoint {still_shop.endpoint_id}" in dialog.text


def test_a_branchs_page_opens_it_in_a_dialog(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/branches/{still_shop.main_id}"))
    address = f"{still_shop.endpoint_url}/connect?branch={still_shop.main_id}"
    assert f'href="{address}" hx-get="{address}" hx-target="#dialog">Connect…</a>' in page.html


def test_the_password_is_shown_only_on_demand(carol: Person, still_shop: Shop) -> None:
    address = f"{still_shop.endpoint_url}/connect"
    answer = carol.post(address, {"style": "url"})
    assert answer["Cache-Control"] == "no-store"
    assert password_of(carol, still_shop) in string_in(answer)
    assert password_of(carol, still_shop) not in carol.get(f"{address}?style=url").content.decode()


def test_only_showing_the_password_is_recorded(alice: Person, shop: Shop) -> None:
    def shown() -> int:
        query = {"type": "role.password_revealed"}
        return len(alice.api.get(f"/projects/{shop.id}/events", **query)["events"])

    address = f"{shop.endpoint_url}/connect"
    before = shown()
    assert alice.get(address).status_code == 200
    assert shown() == before
    # Of a key that has read the password within the last hour, it is no further event.
    key = alice.api.post("/api_keys", {"key_name": "another"})
    alice.post("/sign-in", {"key": key["key"]})
    for _ in range(2):
        assert alice.post(address, {"style": "url"}).status_code == 200
        assert shown() == before + 1
    alice.api.delete(f"/api_keys/{key['id']}")


def test_a_shown_password_stays_while_another_form_is_chosen(
    carol: Person, still_shop: Shop
) -> None:
    address = f"{still_shop.endpoint_url}/connect"
    shown = carol.post(address, {"style": "url"}).content.decode()
    assert f'hx-post="{address}" hx-trigger="change' in shown
    hidden = carol.get(address).content.decode()
    assert f'hx-get="{address}" hx-trigger="change' in hidden


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("psql", "psql '"),
        ("env", 'DATABASE_URL="postgresql://'),
        ("psycopg", 'psycopg.connect("'),
        ("node", 'connectionString: "postgresql://'),
        ("node", "options=endpoint%3Dep-"),
        ("jdbc", "jdbc:postgresql://"),
        ("jdbc", "options=endpoint%3Dep-"),
        ("go", "pgx.Connect("),
        ("nonsense", "postgresql://"),
    ],
)
def test_each_form_is_offered(carol: Person, still_shop: Shop, style: str, words: str) -> None:
    answer = carol.get(f"{still_shop.endpoint_url}/connect?style={style}")
    assert words in string_in(answer)
    assert "********" in string_in(answer)


def test_the_pooled_host_can_be_chosen(carol: Person, still_shop: Shop) -> None:
    answer = carol.htmx_get(f"{still_shop.endpoint_url}/connect?pooled=on", target="connect")
    assert f"endpoint%3D{still_shop.endpoint_id}-pooler" in string_in(answer)


def test_a_host_that_names_the_endpoint_is_kept() -> None:
    """Servers of this API whose host names resolve have such hosts."""
    uri = "postgresql://o:secret@ep-a-b-1-pooler.eu.example.com/neondb?sslmode=require"
    target = Target.read(uri)
    assert in_style("url", target, reveal=True) == uri
    assert "prepare_threshold=None" in in_style("psycopg", target, reveal=True)
    assert f"{uri}&uselibpqcompat=true" in in_style("node", target, reveal=True)


def test_another_role_and_database_can_be_chosen(alice: Person, shop: Shop) -> None:
    branch = f"/projects/{shop.id}/branches/{shop.main_id}"
    alice.api.finish(alice.api.post(f"{branch}/roles", {"role": {"name": 'o"<b>'}}))
    alice.api.finish(
        alice.api.post(f"{branch}/databases", {"database": {"name": "a b", "owner_name": 'o"<b>'}})
    )
    answer = alice.get(f"{shop.endpoint_url}/connect?database=a+b")
    assert "postgresql://o%22%3Cb%3E:********@" in string_in(answer)
    assert "/a%20b?" in string_in(answer)
    assert "<b>" not in answer.content.decode()
    page = Page(answer)
    assert set(page.options["role"]) == {"neondb_owner", 'o"<b>'}


@pytest.mark.thorough
def test_another_accounts_endpoint_is_not_found(bob: Person, shop: Shop) -> None:
    assert bob.get(f"{shop.endpoint_url}/connect").status_code == 404
    assert bob.post(f"{shop.endpoint_url}/connect").status_code == 404


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_connection_that_cannot_be_read_is_reported_in_its_place(
    dave: Person, misbehaving: Misbehaving, status: int
) -> None:
    misbehaving.status, misbehaving.body = status, b"{}"
    address = "/projects/p/endpoints/e/connect?branch=b"
    answer = dave.htmx_get(address, target="connect")
    assert answer.status_code == 200
    assert "notice" not in answer.content.decode()
    assert "Try again" in Page(answer).text
    assert f'hx-get="{address}"' in Page(answer).html
    # A reader who asks for the connection itself gets the error.
    assert dave.htmx_get(address, target="dialog").status_code >= 400
