"""However much one account asks for, another one is served within a second."""

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
import requests

from tests.controlplane.hanging_operations import crowd
from tests.selection import first_of
from tests.support.flood import NUMBER, Flood, flood
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import busyness

# Seconds, on a machine that others do not use.
SOON = 1.0
ROUNDS = 7
# What the other account does meanwhile: see `Flooder`; `hanging` are operations that hang.
WAYS = ["requests", "keyless", "logins", "sql", "slow", "hanging"]


def http(
    method: str, path: str, *headers: str, body: str = "", announced: int | None = None
) -> str:
    """A request as text; `announced` is the length of its body, if only the start is sent."""
    length = len(body) if announced is None else announced
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + body


def port_of(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])


class Flooder:
    """The account that floods, and all that it does."""

    def __init__(self, project: Project) -> None:
        stack, client = project.stack, project.client
        self.project = project
        self.api, self.console = port_of(client.api_url), port_of(stack.console_url)
        self.proxy = stack.proxy_port
        self.path = f"/api/v2{project.path}"
        self.key = f"Authorization: Bearer {client.key}"
        uri = project.created["connection_uris"][0]["connection_uri"]
        self.uri = f"Neon-Connection-String: {uri}"
        self.wrong_uri = "Neon-Connection-String: " + re.sub(r":[^:@]+@", f":{NUMBER}@", uri)

    def requests(self) -> list[Flood]:
        """Reads and writes with many connections."""
        rename = '{"project": {"name": "another"}}'
        return [
            Flood(self.api, http("GET", f"{self.path}/operations?limit=100", self.key), 100),
            Flood(self.api, http("PATCH", self.path, self.key, body=rename), 100),
        ]

    def keyless(self) -> list[Flood]:
        """What needs no key."""
        join = http("POST", "/hosts/join", body='{"invitation": "none"}')
        reads = ("/livez", "/readyz", "/healthz", "/api/v2/openapi.json")
        return [
            Flood(self.api, join, 60),
            *(Flood(self.api, http("GET", path), 60) for path in reads),
        ]

    def logins(self) -> list[Flood]:
        """Wrong keys at the API and the console, and wrong passwords of SQL over HTTP."""
        with requests.Session() as browser:
            page = browser.get(f"{self.project.stack.console_url}/sign-in", timeout=60).text
            cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token is not None
        form = f"csrfmiddlewaretoken={token[1]}&key=perch_{NUMBER}"
        kind = "Content-Type: application/x-www-form-urlencoded"
        wrong = f"Authorization: Bearer perch_{NUMBER}"
        sign_in = http("POST", "/sign-in", kind, f"Cookie: {cookies}", body=form)
        query = http("POST", "/sql", self.wrong_uri, body='{"query": "SELECT 1"}')
        return [
            Flood(self.api, http("GET", "/api/v2/projects", wrong), 100),
            Flood(self.console, sign_in, 20),
            Flood(self.proxy, query, 50),
        ]

    def sql(self) -> list[Flood]:
        """SQL over HTTP, in sessions that are used again and in new ones."""
        body = '{"query": "SELECT 1"}'
        another = f"{self.uri}{'&' if '?' in self.uri else '?'}application_name={NUMBER}"
        return [
            Flood(self.proxy, http("POST", "/sql", self.uri, body=body), 100),
            Flood(self.proxy, http("POST", "/sql", another, body=body), 50),
        ]

    def slow(self) -> list[Flood]:
        """Heads and bodies that are sent slowly, and answers that are not read."""
        list_operations = http("GET", f"{self.path}/operations?limit=1000", self.key)
        large = '{"query": "SELECT repeat(\'x\', 1000000)"}'
        body = http("PATCH", self.path, self.key, body="{", announced=1 << 20)
        query = http("POST", "/sql", self.uri, body="{", announced=1 << 20)
        return [
            Flood(self.api, body, 200, "trickle"),
            Flood(self.console, http("POST", "/sign-in", body="k", announced=999), 100, "trickle"),
            Flood(self.proxy, query, 200, "trickle"),
            Flood(self.api, "GET /healthz HTTP/1.1\r\nX:", 100, "trickle"),
            Flood(self.api, list_operations, 100, "unread"),
            Flood(self.proxy, http("POST", "/sql", self.uri, body=large), 50, "unread"),
        ]


class Neighbour:
    """The account that is to be served, and what it asks for."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.uri = project.created["connection_uris"][0]["connection_uri"]
        self._numbers = itertools.count()

    def read(self) -> None:
        self.project.client.get(self.project.path)

    def write(self) -> None:
        self.project.client.patch(self.project.path, {"project": {"name": "mine"}})

    def operation(self) -> None:
        """A new role, which an operation creates in the compute."""
        body = {"role": {"name": f"role_{next(self._numbers)}"}}
        answer = self.project.client.post(self.project.branch_path(rest="/roles"), body)
        for one in answer["operations"]:
            path = f"{self.project.path}/operations/{one['id']}"
            found = self.project.client.get(path, wait=60)["operation"]
            assert found["status"] == "finished", found

    def connect(self) -> None:
        with psycopg.connect(self.uri, hostaddr="127.0.0.1", connect_timeout=60) as client:
            client.execute("SELECT 1")

    def sql(self) -> None:
        answer = requests.post(
            f"http://127.0.0.1:{self.project.stack.proxy_port}/sql",
            json={"query": "SELECT 1"},
            headers={"Neon-Connection-String": self.uri},
            timeout=60,
        )
        assert answer.ok, answer.text

    def page(self) -> None:
        assert requests.get(f"{self.project.stack.console_url}/sign-in", timeout=60).ok


def seconds(ask: Callable[[], None]) -> float:
    began = time.monotonic()
    ask()
    return time.monotonic() - began


@pytest.fixture(scope="module")
def flooder(stack: Stack) -> Iterator[Flooder]:
    project = Project.create(stack, stack.client())
    yield Flooder(project)
    project.client.call("DELETE", project.path)


def typical_seconds(neighbour: Neighbour) -> dict[str, float]:
    """The median of what each request of the neighbour takes: others use the machine too."""
    asks = ("read", "write", "operation", "connect", "sql", "page")
    took: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(ROUNDS):
        for name in asks:
            took[name].append(seconds(getattr(neighbour, name)))
    return {name: statistics.median(times) for name, times in took.items()}


@pytest.mark.parametrize("way", first_of(WAYS, count=3))
def test_another_account_is_served_within_a_second(
    flooder: Flooder, project: Project, way: str
) -> None:
    before = busyness()
    with ExitStack() as flooding:
        if way == "hanging":
            flooding.enter_context(crowd(flooder.project, 40)).start()
        else:
            flooding.enter_context(flood(getattr(flooder, way)()))
        found = typical_seconds(Neighbour(project))
    allowed = SOON * max(before, busyness())
    assert max(found.values()) < allowed, (found, allowed)
