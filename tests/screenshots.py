"""`python -m tests.screenshots [NAME …]`: a picture of every page of the console, of a service of
its own with something on it, light and dark, on a phone and on a laptop, in `screenshots/`, which
git ignores; and those of the README in `docs/images/`.

The pages are those of `console.urls`: a new one is among them by having an address. With names,
only the pages whose names contain one of them.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import django
from django.urls import URLPattern, get_resolver, reverse
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS, chromium_path
from tests.support.client import Client
from tests.support.stack import ROOT, Stack, new_state_dir, running_stack

FOLDER, README = ROOT / "screenshots", ROOT / "docs" / "images"
SIZES = {"phone": (390, 844), "laptop": (1280, 900)}
THEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")
# What the README shows: the name of its picture, and of the page.
IN_README = {
    "branches.png": "branches",
    "endpoint.png": "endpoint",
    "operations.png": "operations",
    "query.png": "query",
}
BIRDS = """
CREATE TABLE birds AS SELECT n AS id, (array['heron', 'wren', 'robin', 'kite'])[1 + n % 4] AS name,
    round((10 + 300 * sin(n) ^ 2)::numeric, 1) AS grams FROM generate_series(1, 40) n
"""
# Sent on the query page before its picture is taken.
QUERY = "SELECT name, count(*), avg(grams)::numeric(6, 1) AS grams\nFROM birds GROUP BY name;"


def fill(client: Client) -> dict[str, str]:
    """Something of everything; the ids that addresses are made of."""
    made = client.new_project(name="Bird shop")
    project = f"/projects/{made['project']['id']}"
    main, endpoint = made["branch"]["id"], made["endpoints"][0]["id"]
    run(client, made["connection_uris"][0]["connection_uri"])

    def branch(name: str, parent: str, *, reached: bool = False) -> tuple[str, str]:
        endpoints = [{"type": "read_write"}] if reached else []
        body = {"branch": {"name": name, "parent_id": parent}, "endpoints": endpoints}
        found = client.post(f"{project}/branches", body)
        client.finish(found)
        return found["branch"]["id"], found["endpoints"][0]["id"] if reached else ""

    staging, asleep = branch("staging", main, reached=True)
    _, disabled = branch("preview/checkout", staging, reached=True)
    branch("preview/search", staging)
    dev, _ = branch("dev", main)
    for name in ("dev/ann", "dev/ben"):
        branch(name, dev, reached=name.endswith("ann"))
    client.finish(client.post(f"{project}/endpoints/{asleep}/suspend"))
    client.finish(client.patch(f"{project}/endpoints/{disabled}", {"endpoint": {"disabled": True}}))
    client.finish(client.post(f"{project}/branches/{dev}/roles", {"role": {"name": "reader"}}))
    webhook = client.post(
        "/webhooks", {"webhook": {"url": "https://hooks.example.com/perch", "event_types": ["*"]}}
    )
    key = client.post("/api_keys", {"key_name": "ci", "read_only": True})
    client.new_project(name="Nest", wait=False)
    operations = client.get(f"{project}/operations")["operations"]
    return {
        "project_id": made["project"]["id"],
        "branch_id": staging,
        "endpoint_id": endpoint,
        "operation_id": operations[0]["id"],
        "chain_id": str(operations[0].get("chain_id", "")),
        "webhook_id": webhook["webhook"]["id"],
        "key_id": str(key["id"]),
        "role_name": "neondb_owner",
        "database_name": "neondb",
        "name": "neondb",
    }


def run(client: Client, uri: str) -> None:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(BIRDS)


def pages(ids: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The name and the address of each page, of which this knows all that is in its address."""
    for pattern in get_resolver().url_patterns:
        assert isinstance(pattern, URLPattern)
        name, names = pattern.name, list(pattern.pattern.converters)
        if not name or name.endswith(("_live", "changes")):
            continue
        if missing := [one for one in names if not ids.get(one)]:
            print(f"  no picture of {name}: what is {', '.join(missing)}?")
            continue
        yield name, reverse(name, kwargs={one: ids[one] for one in names})


class Photographer:
    def __init__(self, browser: Browser, stack: Stack, ids: dict[str, str]) -> None:
        self.browser = browser
        self.stack = stack
        self.ids = ids
        self.key = (stack.state_dir / "api-key").read_text().strip()

    def take(self, wanted: list[str]) -> None:
        for theme in THEMES:
            for size, (width, height) in SIZES.items():
                context = self.browser.new_context(
                    base_url=self.stack.console_url,
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                    reduced_motion="reduce",
                    service_workers="block",
                )
                page = context.new_page()
                page.set_default_timeout(30_000)
                self._shoot(page, "sign_in", "/sign-in", f"{theme}-{size}", wanted)
                page.goto("/sign-in")
                page.get_by_label("API key").fill(self.key)
                page.get_by_role("button", name="Sign in").click()
                for name, address in pages(self.ids):
                    self._shoot(page, name, address, f"{theme}-{size}", wanted)
                context.close()

    def _shoot(self, page: Page, name: str, address: str, kind: str, wanted: list[str]) -> None:
        if wanted and not any(one in name for one in wanted):
            return
        answer = page.goto(address)
        is_page = answer is not None and "text/html" in (answer.header_value("content-type") or "")
        if not is_page or answer is None or answer.status == 405:
            # It answers to a button, or it is no page at all.
            return
        if answer.status >= 400:
            print(f"  {name}: {answer.status}")
        if name == "query" and page.locator("[data-run]").count():
            page.locator("[data-run]").fill(QUERY)
            page.locator("#run").click()
            page.locator(".cells td").first.wait_for()
        page.evaluate("document.fonts.ready")
        page.screenshot(path=FOLDER / f"{name}-{kind}.png", full_page=True)
        for picture, shown in IN_README.items():
            if shown == name and kind == "light-laptop":
                page.screenshot(path=README / picture)


def main(wanted: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    path = chromium_path()
    if path is None:
        sys.exit("no Chromium found")
    if not wanted:
        shutil.rmtree(FOLDER, ignore_errors=True)
    for folder in (FOLDER, README):
        folder.mkdir(parents=True, exist_ok=True)
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        key = (state_dir / "api-key").read_text().strip()
        ids = fill(Client(stack.api_url, key))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
            Photographer(browser, stack, ids).take(wanted)
            browser.close()
    print(f"{len(list(FOLDER.glob('*.png')))} pictures in {FOLDER.relative_to(ROOT)}/")


if __name__ == "__main__":
    main(sys.argv[1:])
