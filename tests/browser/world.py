"""A service with an example of everything, and a list of every page and state of the console to
check there."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from unittest.mock import patch

import django
from django.urls import URLPattern, get_resolver, reverse
from playwright.sync_api import Page, expect

from tests.support.client import Client
from tests.support.past import past_moment
from tests.support.project import Project, locked
from tests.support.stack import Stack

# For this process only, not for processes that a test starts.
with patch.dict(os.environ, DJANGO_SETTINGS_MODULE="console.settings"):
    django.setup()

# A name of one word that is wider than a phone.
LONG = "bob/faster-search-with-a-very-long-name-for-a-branch-of-one-word-" + "x" * 40
ROLE, DATABASE = "neondb_owner", "neondb"

# Names of addresses that are not pages of their own, and why.
NO_PAGES = {
    "table_value": "a text",
    **dict.fromkeys(
        "project_recover switch sign_out endpoint_start endpoint_enable endpoint_pooling "
        "endpoint_connection_string branch_protection branch_history_query operation_retry "
        "chain_retry webhook_enable webhook_test webhook_resend query_cancel table_export "
        "host_drain".split(),
        "it answers to a button alone",
    ),
}
ONE_TABLE = "?table=%5B%22public%22%2C%22eggs%22%5D"
# The query with which a page is requested.
QUERIES = {
    "tables": ONE_TABLE,
    "table_row": f"{ONE_TABLE}&branch={{main}}&database={DATABASE}&role={ROLE}&key=%5B%221%22%5D",
    "table_row_add": f"{ONE_TABLE}&branch={{main}}&database={DATABASE}&role={ROLE}",
    "table_import": f"{ONE_TABLE}&branch={{main}}&database={DATABASE}&role={ROLE}",
    "branch_create": "?parent={branch_id}",
    **dict.fromkeys(
        ("branch_history", "branch_history_create", "branch_history_restore"), "?moment={moment}"
    ),
    "role_password": f"?name={ROLE}",
    "role_reset": f"?name={ROLE}",
    "role_delete": f"?name={ROLE}",
    "database_edit": f"?name={DATABASE}",
    "database_delete": f"?name={DATABASE}",
}
# Forms and other contents of dialogs, by the page from which they are opened: its name or address.
_FORMS = {
    "dashboard": "go shortcuts preferences sign_out_everywhere project_create",
    "api_keys": "api_key_create api_key_revoke",
    "project": "project_switcher project_connect endpoint_create endpoint_connect",
    "project_settings": "project_rename project_history project_durability project_addresses "
    "project_quotas project_defaults project_replication project_delete",
    "endpoint": "endpoint_suspend endpoint_restart endpoint_disable endpoint_reassign "
    "endpoint_settings endpoint_delete",
    "branches": "branch_create",
    "branch": "branch_rename branch_expiry branch_set_default branch_reset branch_restore "
    "role_create role_reset role_delete database_create database_edit database_delete "
    "snapshot_create snapshot_restore snapshot_delete",
    "branch_history": "branch_history_create branch_history_restore",
    "/projects/{project_id}/branches/{long}": "branch_delete",
    "/projects/{project_id}/tables" + ONE_TABLE: "table_row table_row_add",
    "/projects/{failing}/runs/{under_way}": "operation_cancel chain_cancel",
    "webhooks": "webhook_create",
    "webhook": "webhook_edit webhook_rotate webhook_delete",
}
OPENED_ON = {form: page for page, forms in _FORMS.items() for form in forms.split()}


def names() -> list[str]:
    """The name of each of the console's addresses. A name that ends in `_live` is a part of a
    page."""
    patterns = [one for one in get_resolver().url_patterns if isinstance(one, URLPattern)]
    return [one.name for one in patterns if one.name and not one.name.endswith("_live")]


PAGES = [name for name in names() if name not in NO_PAGES]

Who = Literal["operator", "newcomer", "visitor"]


@dataclass
class World:
    """`newcomer` has an account with nothing in it; a visitor has no account."""

    stack: Stack
    keys: Mapping[Who, str]
    # By the names that addresses use.
    ids: dict[str, str] = field(default_factory=dict)
    # By the name of an address of another resource.
    own: dict[str, dict[str, str]] = field(default_factory=dict)

    def address(self, name: str) -> str:
        """Return the address of the page of that name."""
        pattern = next(
            one
            for one in get_resolver().url_patterns
            if isinstance(one, URLPattern) and one.name == name
        )
        ids = self.ids | self.own.get(name, {})
        own = {one: ids[one] for one in pattern.pattern.converters}
        return reverse(name, kwargs=own) + self.fill(QUERIES.get(name, ""))

    def fill(self, words: str) -> str:
        return words.format_map(self.ids)


@contextmanager
def world(stack: Stack) -> Iterator[World]:
    """While this lasts, one operation is held half-way, and the one behind it waits."""
    operator = Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())
    shop = Project.create(stack, operator, name="Bird shop")
    failing = Project.create(stack, operator, name="Nest")
    failing.suspend()
    control = stack.data_dir(failing.branch_id) / "global" / "pg_control"
    control.rename(control.with_name("pg_control.away"))
    (failed,) = operator.post(failing.endpoint_path(rest="/start"))["operations"]

    dev = shop.new_branch_id(name="dev", parent_id=shop.branch_id)
    asleep = shop.create_endpoint(dev)["endpoint"]["id"]
    deep = dev
    for level in range(1, 8):
        deep = shop.new_branch_id(name=f"level {level}", parent_id=deep)
    long = shop.new_branch_id(name=LONG, parent_id=dev, expires_at="2999-01-31T12:00:00Z")
    disabled = shop.create_endpoint(long)["endpoint"]["id"]
    shop.new_branch_id(name="safe", parent_id=shop.branch_id, protected=True)
    taken = shop.done(operator.post(shop.branch_path(dev, "/snapshot"), {"name": "old"}))
    shop.change(settings={"pg_settings": {"work_mem": "7MB", "statement_timeout": "30s"}})
    shop.sql("CREATE TABLE eggs (id int PRIMARY KEY, kind text, note json)")
    shop.sql(
        "INSERT INTO eggs SELECT n, repeat('speckled ', n), NULL FROM generate_series(1, 60) n"
    )
    shop.suspend(asleep)
    shop.change(disabled, disabled=True)
    asked = {"url": f"https://hooks.invalid/{'x' * 60}", "event_types": ["*"]}
    webhook = operator.post("/webhooks", {"webhook": asked})["webhook"]
    key = operator.post("/api_keys", {"key_name": "reader", "read_only": True})
    bare = Project.create(stack, operator, name="Bare", history_retention_seconds=0)
    bare.done(operator.delete(bare.endpoint_path()))
    created = shop.operations()[-1]
    operator.ended(failing.id, failed["id"])

    keys: dict[Who, str] = {"operator": operator.key, "newcomer": stack.new_key(), "visitor": ""}
    found = World(stack, keys)
    with locked(stack, failing.branch_id):
        control.with_name("pg_control.away").rename(control)
        restart = operator.post(failing.endpoint_path(rest="/restart"))["operations"]
        found.ids = {
            "project_id": shop.id,
            "branch_id": dev,
            "endpoint_id": shop.endpoint_id,
            "operation_id": created["id"],
            "chain_id": created["chain_id"],
            "snapshot_id": taken["snapshot"]["id"],
            "webhook_id": webhook["id"],
            "host_id": "local",
            "key_id": str(key["id"]),
            "main": shop.branch_id,
            "moment": past_moment(shop),
            "deep": deep,
            "long": long,
            "asleep": asleep,
            "disabled": disabled,
            "bare": bare.id,
            "bare_branch": bare.branch_id,
            "failing": failing.id,
            "failing_endpoint": failing.endpoint_id,
            "failed": failed["chain_id"],
            "under_way": restart[0]["chain_id"],
        }
        going = {
            "project_id": failing.id,
            "operation_id": restart[1]["id"],
            "chain_id": restart[0]["chain_id"],
        }
        found.own = {
            "operation_cancel": going,
            "chain_cancel": going,
            # A branch with children stays.
            "branch_delete": {"branch_id": long},
            # The history of a project's first branch begins with the branch.
            "branch_history": {"branch_id": shop.branch_id},
            "branch_history_create": {"branch_id": shop.branch_id},
            "branch_history_restore": {"branch_id": shop.branch_id},
        }
        yield found
        operator.post(f"{failing.path}/chains/{restart[0]['chain_id']}/cancel")
    for project in (shop, failing, bare):
        operator.call("DELETE", project.path)
    operator.delete(f"/webhooks/{webhook['id']}")


def stay(page: Page) -> None:
    pass


@dataclass(frozen=True)
class State:
    """A page in a state in which it looks different."""

    address: str
    # What is done there first.
    act: Callable[[Page], None] = stay
    who: Who = "operator"
    needs_script: bool = False

    @property
    def is_left(self) -> bool:
        """True if something is done there, which may lead to another page."""
        return self.act is not stay


def _send(button: str, **typed: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        for label, value in typed.items():
            page.get_by_label(label.replace("_", " ")).first.fill(value)
        page.get_by_role("button", name=button, exact=True).first.click()

    return act


def _ask(sql: str, *, shows: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_label("SQL").fill(sql)
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(shows).first).to_be_visible()

    return act


def _tables(page: Page) -> None:
    page.locator("#show-tables").click()
    expect(page.get_by_role("button", name="Refresh")).to_be_visible()


def _secret(button: str, **typed: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        _send(button, **typed)(page)
        expect(page.locator(".secret code")).to_be_visible()

    return act


def _reveal(page: Page) -> None:
    page.get_by_role("button", name="Reveal password").click()
    expect(page.get_by_text("The password is visible.")).to_be_visible()


def _by_hand(page: Page) -> None:
    page.evaluate(
        """() => {
            Object.defineProperty(navigator, "clipboard", {value: undefined});
            document.execCommand = () => false;
        }"""
    )
    page.locator("[data-copy]").first.click()
    expect(page.locator(".copy-by-hand textarea")).to_be_focused()


def _gone(page: Page) -> None:
    """Act as if what the page shows had been deleted elsewhere."""
    page.route(
        "**/live?*",
        lambda route: route.continue_(url=re.sub(r"/br-[\w-]+", "/br-x", page.url) + "/live"),
    )
    page.evaluate("Perch.renew()")
    expect(page.locator("#main.gone")).to_be_visible()
    page.unroute("**/live?*")


PROJECT, BRANCH = "/projects/{project_id}", "/projects/{project_id}/branches/{branch_id}"
ENDPOINT = PROJECT + "/endpoints/{endpoint_id}"
STATES = {
    "no project": State("/", who="newcomer"),
    "no activity": State("/activity", who="newcomer"),
    "no webhook": State("/webhooks", who="newcomer"),
    "one key": State("/api-keys", who="newcomer"),
    "nowhere to go": State("/go", who="newcomer"),
    "no such project among them": State("/?search=nothing+at+all"),
    "signed out": State("/sign-in", who="visitor"),
    "a key that is wrong": State("/sign-in", _send("Sign in", API_key="wrong"), who="visitor"),
    "keys for a visitor": State("/shortcuts", who="visitor"),
    "looks for a visitor": State("/preferences", who="visitor"),
    "a link that is used up": State("/sign-in/link?code=used", who="visitor"),
    "no such address for a visitor": State("/nowhere/at/all", who="visitor"),
    "no such address": State("/nowhere/at/all"),
    "no such project": State("/projects/nowhere"),
    "no such branch": State(PROJECT + "/branches/br-nowhere"),
    "no such endpoint": State(PROJECT + "/endpoints/ep-nowhere"),
    "no such run": State(PROJECT + "/runs/nowhere"),
    "no such webhook": State("/webhooks/nowhere"),
    "an address of a button": State(ENDPOINT + "/start"),
    "no endpoint": State("/projects/{bare}"),
    "no endpoint to ask": State("/projects/{bare}/query"),
    "no endpoint to read": State("/projects/{bare}/tables"),
    "no such table": State(PROJECT + "/tables?table=%5B%22public%22%2C%22none%22%5D"),
    "a table sorted and filtered": State(
        PROJECT + "/tables" + ONE_TABLE + "&sort=kind&desc=1&column=id&op=gt&value=7"
    ),
    "a change to confirm": State(
        PROJECT + "/tables/row" + QUERIES["table_row"],
        _send("Review SQL…", kind="plain"),
    ),
    "a row to delete": State(
        PROJECT + "/tables/row" + QUERIES["table_row"],
        _send("Delete row…", kind="plain"),
    ),
    "a row to add": State(
        PROJECT + "/tables/new-row" + QUERIES["table_row_add"],
        _send("Review SQL…", kind="plain"),
    ),
    "no endpoint to connect to": State("/projects/{bare}/connect"),
    "no branch to perch on": State("/projects/{failing}/new-endpoint"),
    "one branch": State("/projects/{bare}/branches"),
    "a branch without endpoint": State("/projects/{bare}/branches/{bare_branch}"),
    "nothing to compare with": State("/projects/{bare}/branches/{bare_branch}/schema"),
    "the first branch": State(PROJECT + "/branches/{main}"),
    "a branch deep down": State(PROJECT + "/branches/{deep}"),
    "a branch of a long name": State(PROJECT + "/branches/{long}"),
    "no moment chosen": State(PROJECT + "/branches/{main}/history"),
    "no such moment": State(PROJECT + "/branches/{main}/history?moment=2020-01-31+12:00"),
    "a moment by its position": State(PROJECT + "/branches/{main}/history?moment=0/1"),
    "no history": State("/projects/{bare}/branches/{bare_branch}/history"),
    "a branch of no moment": State(PROJECT + "/branches/{main}/history/new-branch"),
    "a schema of a moment": State(PROJECT + "/branches/{main}/schema?base={main}&moment={moment}"),
    "a rename of a long name": State(PROJECT + "/branches/{long}/rename"),
    "branches found": State(PROJECT + "/branches?search=level"),
    "branches sorted": State(PROJECT + "/branches?sort=name"),
    "no branch found": State(PROJECT + "/branches?search=nothing+at+all"),
    "no endpoint found": State(PROJECT + "?search=nothing+at+all"),
    "endpoints sorted": State(PROJECT + "?sort=state"),
    "an endpoint that sleeps": State(PROJECT + "/endpoints/{asleep}"),
    "an endpoint that is disabled": State(PROJECT + "/endpoints/{disabled}"),
    "a week of an endpoint": State(ENDPOINT + "/monitoring?range=7d"),
    "a week of an endpoint that failed": State(
        "/projects/{failing}/endpoints/{failing_endpoint}/monitoring?range=7d"
    ),
    "an endpoint that failed": State("/projects/{failing}/endpoints/{failing_endpoint}"),
    "a project with a failure": State("/projects/{failing}"),
    "operations of which some go on": State("/projects/{failing}/operations"),
    "operations filtered": State(PROJECT + "/operations?action=start_compute"),
    "no such operation": State(PROJECT + "/operations?status=failed"),
    "a run that failed": State("/projects/{failing}/runs/{failed}"),
    "a run under way": State("/projects/{failing}/runs/{under_way}"),
    "a timeline with a failure": State("/projects/{failing}/timeline"),
    "events filtered": State(PROJECT + "/events?actor=sql"),
    "settings found": State(ENDPOINT + "/pg-settings?search=work_mem"),
    "no setting found": State(ENDPOINT + "/pg-settings?search=nothing+at+all"),
    "settings that are refused": State(
        ENDPOINT + "/settings", _send("Save", Postgres_settings="no_such = 1")
    ),
    "a name that is taken": State(PROJECT + "/new-branch", _send("Create branch", Name="dev")),
    "a password in the string": State(ENDPOINT + "/connect", _reveal),
    "a role's password": State(f"{BRANCH}/role/password?name={ROLE}", _secret("Reveal password")),
    "a key that is shown once": State("/api-keys/new", _secret("Create key", Name="once")),
    "a webhook's secret": State("/webhooks/{webhook_id}/rotate", _secret("Rotate secret")),
    "a text to copy by hand": State(ENDPOINT, _by_hand, needs_script=True),
    "a branch that is gone": State(BRANCH, _gone, needs_script=True),
    "an answer": State(
        PROJECT + "/query",
        _ask("SELECT n, repeat('long ', 50) FROM generate_series(1, 30) n", shows=".cells td"),
    ),
    "an error in a query": State(
        PROJECT + "/query", _ask("SELECT 1;\nSELECT nowhere", shows="mark")
    ),
    "a query that may not write": State(
        PROJECT + "/query", _ask("CREATE TABLE mine ()", shows="#run-writing")
    ),
    "tables": State(PROJECT + "/query", _tables),
    "tables of an endpoint that sleeps": State(PROJECT + "/tables?branch={branch_id}"),
    "a filter that is refused": State(
        PROJECT + "/tables" + ONE_TABLE + "&column=id&op=eq&value=first"
    ),
}
