"""`python -m tests.benchmarks.console [PAGE …]`: the cost of a page of the console compared with
the API calls that it needs, and the bytes of a first page.

`python -m tests.benchmarks.console lighthouse` rates pages by Lighthouse instead, which it installs
from npm (tests.support.lighthouse).

The projects have 1, 40 and 400 branches, a tenth of them with endpoints. The calls of a page, and
their rounds, are first recorded in this process. Then two things are timed alternately, over
connections that stay open: pages of the running console, and the slowest chain of their calls,
which has the slowest call of each round. The result is the page's time divided by its chain's, with
the number of rounds.
"""

import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import django
import requests

from tests.benchmarks.filling import add_branches, analyze
from tests.support import lighthouse
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import Stack, new_state_dir, running_stack

TURNS = 60
# Milliseconds of a page, and of one that reads a database.
TARGET, TARGET_TABLES = 60.0, 100.0
BRANCHES = (1, 40, 400)
# Seconds by which each call is delayed while the parallel calls are recorded: longer than it takes
# to begin all of them.
LONGER = 0.1


@dataclass(frozen=True)
class Call:
    path: str
    query: dict[str, Any] | None
    began: float
    ended: float


def main(wanted: Sequence[str]) -> None:
    with new_state_dir() as state_dir, running_stack(state_dir, WEB_CONCURRENCY="2") as stack:
        client = stack.client()
        if "lighthouse" in wanted:
            rate(stack, client)
        else:
            compare(stack, client, wanted)
            weigh(stack, client)


def compare(stack: Stack, client: Client, wanted: Sequence[str]) -> None:
    prepare(stack)
    print(f"{'page':24}{'branches':>9}{'rounds':>7}{'chain p50':>11}{'page p50':>10}", end="")
    print(f"{'p50':>7}{'p95':>7}   (times, in ms; the page's over the chain's)")
    print(f"targets with {BRANCHES[-1]} branches: p50 at most {TARGET:g} ms, ", end="")
    print(f"of tables at most {TARGET_TABLES:g}")
    for count in BRANCHES:
        for name, path in pages(stack, client, count).items():
            if not wanted or any(one in name for one in wanted):
                measure(stack, client, name, path, count)


def rate(stack: Stack, client: Client) -> None:
    chromium = lighthouse.chromium_path()
    assert chromium, "no Chromium found"
    lighthouse.install()
    shop = Project.create(stack, client, name="shop")
    for name, path in lighthouse.pages(shop).items():
        scores = lighthouse.rate(stack.console_url, path, client.key, chromium)
        print(f"{name:24}{scores}", flush=True)


# What a first page loads besides itself.
PARTS = re.compile(r'(?:src|href)="(/static/[^"]+)"')


def weigh(stack: Stack, client: Client) -> None:
    """Print the bytes of first pages without their headers, in both encodings."""
    path = Project.create(stack, client, name="shop").path
    pages = {"sign-in": "/sign-in", "dashboard": "/", "endpoints": path}
    print(f"{'first page':24}{'gzip':>9}{'brotli':>9}   (bytes, with styles and scripts)")
    with requests.Session() as signed_in, requests.Session() as visitor:
        sign_in(signed_in, stack.console_url, client.key)
        for name, path in pages.items():
            browser = visitor if name == "sign-in" else signed_in
            parts = PARTS.findall(browser.get(stack.console_url + path, timeout=30).text)
            weights = [
                sum(weight(browser, stack.console_url + one, accepted) for one in (path, *parts))
                for accepted in ("gzip", "br, gzip")
            ]
            print(f"{name:24}{weights[0]:9}{weights[1]:9}", flush=True)


def weight(browser: requests.Session, url: str, accepted: str) -> int:
    with browser.get(url, headers={"Accept-Encoding": accepted}, stream=True, timeout=30) as answer:
        good(answer)
        return len(answer.raw.read(decode_content=False))


def prepare(stack: Stack) -> None:
    """Set up the console in this process, to record the calls of its pages."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "console.settings"
    os.environ["MANAGEMENT_API_URL"] = stack.api_url
    os.environ["PERCH_SECRET_KEY"] = "of the benchmark"
    os.environ["PERCH_ALLOWED_HOSTS"] = "testserver"
    os.environ["PERCH_CONSOLE_STATE_DIR"] = str(stack.state_dir / "benchmark")
    os.environ["PERCH_LOG_LEVEL"] = "ERROR"
    django.setup()


def pages(stack: Stack, client: Client, branches: int) -> dict[str, str]:
    made = client.new_project(name=f"{branches} branches")
    project = made["project"]["id"]
    parent_id = made["branch"]["id"]
    add_branches(stack, project, branches - 1, parent_id=parent_id, endpoint_on_every=10)
    analyze(stack)
    path = f"/projects/{project}"
    chain = client.get(f"{path}/operations")["operations"][0]["chain_id"]
    found = {
        "dashboard": "/",
        "endpoints": path,
        "branches": f"{path}/branches",
        "branch": f"{path}/branches/{made['branch']['id']}",
        "endpoint": f"{path}/endpoints/{made['endpoints'][0]['id']}",
        "operations": f"{path}/operations",
        "run": f"{path}/runs/{chain}",
        "events": f"{path}/events",
        "settings": f"{path}/settings",
        "query": f"{path}/query",
        "tables": f"{path}/tables",
        "create an endpoint": f"{path}/new-endpoint",
    }
    from django.urls import Resolver404, resolve

    def is_there(address: str) -> bool:
        try:
            return bool(resolve(address))
        except Resolver404:
            return False

    return {name: address for name, address in found.items() if is_there(address)}


def measure(stack: Stack, client: Client, name: str, path: str, branches: int) -> None:
    rounds = rounds_of(calls_of(client, path))
    with requests.Session() as browser:
        sign_in(browser, stack.console_url, client.key)
        page = timed(lambda: good(browser.get(stack.console_url + path, timeout=60)))

        def ask(call: Call) -> None:
            url = f"{client.api_url}/{call.path}"
            good(client.session.get(url, params=call.query, timeout=60))

        slowest = [max(one, key=lambda call: median_of(ask, call)) for one in rounds]

        def ask_all() -> None:
            for call in slowest:
                ask(call)

        chain = timed(ask_all)
        pages_took, chains_took = [], []
        for _ in range(TURNS):
            chains_took.append(chain())
            pages_took.append(page())
    p50 = statistics.median(pages_took) / statistics.median(chains_took)
    p95 = at(pages_took, 0.95) / at(chains_took, 0.95)
    chain_ms, page_ms = (statistics.median(one) * 1000 for one in (chains_took, pages_took))
    print(f"{name:24}{branches:9}{len(rounds):7}{chain_ms:11.1f}{page_ms:10.1f}", end="")
    target = TARGET_TABLES if name == "tables" else TARGET
    is_missed = branches == BRANCHES[-1] and page_ms > target
    print(f"{p50:7.2f}{p95:7.2f}{'   missed' if is_missed else ''}", flush=True)


def calls_of(client: Client, path: str) -> list[Call]:
    """Return the API calls of the page, as recorded in this process."""
    from tests.console.browser import Browser

    browser = Browser()
    assert browser.post("/sign-in", {"key": client.key}).status_code == 302
    calls: list[Call] = []
    # Imported here: its types need other settings than the other benchmarks.
    transport = import_module("console.api.transport").Transport
    usual = transport._call

    def noted(self: Any, session: Any, method: str, parts: Sequence[str], **named: Any) -> object:
        began = time.perf_counter()
        try:
            return cast(object, usual(self, session, method, parts, **named))
        finally:
            time.sleep(LONGER)
            ended = time.perf_counter()
            calls.append(Call("/".join(parts), named.get("query"), began, ended))

    transport._call = noted
    try:
        answer = browser.get(path)
        assert answer.status_code == 200, (path, answer.status_code)
    finally:
        transport._call = usual
    # No page waits for the request for the service's status.
    return [call for call in calls if call.path != "status"]


def rounds_of(calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls by rounds of parallel calls."""
    rounds: list[list[Call]] = []
    for call in sorted(calls, key=lambda call: call.began):
        if rounds and call.began < min(one.ended for one in rounds[-1]):
            rounds[-1].append(call)
        else:
            rounds.append([call])
    return rounds


def sign_in(browser: requests.Session, url: str, key: str) -> None:
    form = browser.get(f"{url}/sign-in", timeout=30).text
    token = form.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    data = {"key": key, "csrfmiddlewaretoken": token}
    good(browser.post(f"{url}/sign-in", data=data, timeout=30))


def median_of(ask: Callable[[Call], None], call: Call) -> float:
    measured = timed(lambda: ask(call))
    return statistics.median(measured() for _ in range(7))


def timed(call: Callable[[], object]) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return once


def good(answer: requests.Response) -> None:
    assert answer.ok, (answer.url, answer.status_code, answer.text[:200])


def at(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


if __name__ == "__main__":
    main(sys.argv[1:])
