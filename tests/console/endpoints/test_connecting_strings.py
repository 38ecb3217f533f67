"""Copied connection strings: each is used unchanged by the program that it is for."""

import contextlib
import json
import re
import shlex
import subprocess
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler

from console.endpoints.connection_strings import LABELS, Target, in_style
from tests.clients import nodejs
from tests.console.browser import Browser
from tests.console.conftest import Person, Shop
from tests.console.endpoints.test_connecting import password_of
from tests.support.jdbc import ask_by_jdbc

QUERY = "SELECT 'reached ' || current_user"
REACHED = "reached neondb_owner"


def copied(person: Person, shop: Shop, style: str, **chosen: str) -> str:
    """Return what the page's copy button puts into the clipboard."""
    answer = person.post(f"{shop.endpoint_url}/connection-string", {"style": style, **chosen})
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["Cache-Control"] == "no-store"
    return str(answer.content.decode())


def asks(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.execute(QUERY).fetchone()[0])  # type: ignore[index]


def env_value(text: str) -> str:
    name, _, value = text.partition("=")
    assert name == "DATABASE_URL"
    return str(json.loads(value))


@pytest.mark.parametrize("style", LABELS)
def test_each_form_comes_with_the_password(carol: Person, still_shop: Shop, style: str) -> None:
    text = copied(carol, still_shop, style)
    assert "****" not in text
    assert password_of(carol, still_shop) in text


@pytest.mark.parametrize("pooled", ["", "on"])
def test_a_url_connects(carol: Person, still_shop: Shop, pooled: str) -> None:
    assert asks(copied(carol, still_shop, "url", pooled=pooled)) == REACHED
    for style in ("env", "prisma"):
        text = env_value(copied(carol, still_shop, style, pooled=pooled))
        # Prisma itself reads this.
        assert asks(text.removesuffix("&pgbouncer=true")) == REACHED


def test_psql_connects(carol: Person, still_shop: Shop) -> None:
    command = shlex.split(copied(carol, still_shop, "psql"))
    ran = subprocess.run(
        [*command, "-Atc", QUERY], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == REACHED, ran.stderr


@pytest.mark.parametrize("pooled", ["", "on"])
def test_psycopg_connects(carol: Person, still_shop: Shop, pooled: str) -> None:
    named: dict[str, Any] = {}
    exec(copied(carol, still_shop, "psycopg", pooled=pooled), named)  # as pasted
    with named["connection"] as connection:
        assert connection.execute(QUERY).fetchone()[0] == REACHED


@pytest.mark.parametrize("pooled", ["", "on"])
def test_django_connects(
    carol: Person, still_shop: Shop, pooled: str, django_db_blocker: Any
) -> None:
    named: dict[str, Any] = {}
    exec(copied(carol, still_shop, "django", pooled=pooled), named)  # as pasted
    database = ConnectionHandler(named["DATABASES"])["default"]
    assert isinstance(database, DatabaseWrapper)
    with django_db_blocker.unblock(), contextlib.closing(database), database.cursor() as cursor:
        cursor.execute(QUERY)
        assert cursor.fetchone() == (REACHED,)


@pytest.mark.parametrize("pooled", ["", "on"])
def test_sqlalchemy_connects(carol: Person, still_shop: Shop, pooled: str) -> None:
    text = copied(carol, still_shop, "sqlalchemy", pooled=pooled)
    sqlalchemy = pytest.importorskip("sqlalchemy")
    named: dict[str, Any] = {}
    exec(text, named)  # as pasted
    with named["engine"].connect() as connection:
        assert connection.execute(sqlalchemy.text(QUERY)).scalar() == REACHED
    named["engine"].dispose()


def reached_by_node_postgres(text: str) -> str:
    """Return the user as which the program connects, or the program's error."""
    try:
        nodejs.install()
    except nodejs.NoNode as problem:
        pytest.skip(str(problem))
    text += (
        "\nawait client.connect()\n"
        f'console.log(Object.values((await client.query("{QUERY}")).rows[0])[0])\n'
        "await client.end()\n"
    )
    # Beside the modules, because Node.js looks for them from the file's directory upwards.
    ran = nodejs.run("node", "--input-type=module", "-e", text, timeout=60)
    return ran.output.strip() or ran.told


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", ["", "on"])
def test_node_postgres_connects(carol: Person, still_shop: Shop, pooled: str) -> None:
    text = copied(carol, still_shop, "node", pooled=pooled)
    assert reached_by_node_postgres(text) == REACHED


@pytest.mark.thorough
def test_node_postgres_connects_if_the_server_requires_tls(carol: Person, still_shop: Shop) -> None:
    """As with a region's host name, the certificate's authority is one that Node.js does not
    know."""
    target = Target.read(copied(carol, still_shop, "url") + "&sslmode=require")
    assert reached_by_node_postgres(in_style("node", target, reveal=True)) == REACHED
    assert "uselibpqcompat=true" in in_style("prisma", target, reveal=True)
    others = LABELS.keys() - {"node", "prisma"}
    assert not any("uselibpqcompat" in in_style(one, target, reveal=True) for one in others)


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", ["", "on"])
def test_jdbc_connects(carol: Person, still_shop: Shop, pooled: str) -> None:
    assert ask_by_jdbc(copied(carol, still_shop, "jdbc", pooled=pooled)) == REACHED


def test_the_host_name_that_needs_dns_is_listed_second(carol: Person, still_shop: Shop) -> None:
    html = carol.get(f"{still_shop.endpoint_url}/connect").content.decode()
    first, second = re.findall(r'<option value="(name|)"', html.partition('name="address"')[2])
    assert (first, second) == ("", "name")
    url = copied(carol, still_shop, "url", address="name")
    assert urlsplit(url).hostname == f"{still_shop.endpoint_id}.localhost"
    assert "options" not in url
    # Only TLS tells the proxy that name.
    assert url.endswith("?sslmode=require")
    pooled = copied(carol, still_shop, "url", address="name", pooled="on")
    assert urlsplit(pooled).hostname == f"{still_shop.endpoint_id}-pooler.localhost"
    # If the name resolves, it connects.
    with psycopg.connect(url, hostaddr="127.0.0.1") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("style", LABELS)
def test_special_characters_in_a_name_are_escaped(style: str) -> None:
    target = Target('o"$`\\ ü', "p'%&*", "h.example", None, "a b/c?", "")
    text = in_style(style, target, reveal=True)
    assert "\n\n\n" not in text
    if '"postgresql' in text or text.startswith("postgresql"):
        found = re.search(r"postgresql(?:\+psycopg)?(://[^\"]+)", text)
        assert found
        assert Target.read(f"postgresql{found[1]}") == target


def test_a_read_only_key_copies_nothing(carol: Person, still_shop: Shop) -> None:
    made = carol.api.post("/api_keys", {"key_name": "looking", "read_only": True})
    reader = Person(type(carol.browser)(), carol.api)
    assert reader.post("/sign-in", {"key": made["key"]}).status_code == 302
    answer = reader.post(f"{still_shop.endpoint_url}/connection-string", {"style": "url"})
    assert answer.status_code == 403
    assert "read-only" in answer.content.decode()


def test_after_signing_out_copying_reports_an_error(visitor: Browser, still_shop: Shop) -> None:
    url = f"{still_shop.endpoint_url}/connection-string"
    answer = visitor.post(url, {"style": "url"})
    assert answer.status_code == 401
    assert answer.content.decode().startswith("Nothing was copied: you are signed out.")


def test_the_connection_of_a_branch_and_of_a_project(carol: Person, still_shop: Shop) -> None:
    wanted = f"{still_shop.endpoint_url}/connect?branch={still_shop.main_id}"
    assert carol.get(f"{still_shop.url}/connect")["Location"] == wanted
    branch = f"{still_shop.url}/branches/"
    assert carol.get(f"{branch}{still_shop.main_id}/connect")["Location"] == wanted
    bare = carol.get(f"{branch}{still_shop.dev_id}/connect")
    assert bare.status_code == 200
    assert f"new-endpoint?branch={still_shop.dev_id}" in bare.content.decode()
