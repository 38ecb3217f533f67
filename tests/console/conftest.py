"""Users with accounts at the running API, and their browsers at the console."""

import atexit
import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.conf import settings as django_settings

from tests.console.browser import Browser
from tests.console.pages import Page
from tests.support.client import Client
from tests.support.project import Project
from tests.support.stack import Stack, session_stack

# Set for the whole run: code that runs while a test ends needs these settings too.
django_settings.SECRET_KEY = "a secret of the tests"
django_settings.ALLOWED_HOSTS = ["testserver"]
django_settings.STATE_DIR = tempfile.mkdtemp(prefix="perch-tests-")
atexit.register(shutil.rmtree, django_settings.STATE_DIR, ignore_errors=True)


@dataclass
class Person:
    """A user with an account, who is signed in at the console and can call the API directly."""

    browser: Browser
    api: Client

    def get(self, path: str, **headers: str) -> Any:
        return self.browser.get(path, headers=headers)

    def post(self, path: str, data: dict[str, Any] | None = None, **headers: str) -> Any:
        return self.browser.post(path, data or {}, headers=headers)

    def htmx_get(self, path: str, *, target: str = "live", at: str = "/") -> Any:
        return self.get(path, **_htmx(target, at))

    def htmx_post(self, path: str, data: dict[str, Any] | None = None, *, at: str = "/") -> Any:
        return self.post(path, data, **_htmx("form", at))


@pytest.fixture(autouse=True)
def signs_in_as_often_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests of a process sign in with a few keys."""
    monkeypatch.setattr("console.sign_in.sessions._restored_at", {})


def _htmx(target: str, at: str) -> dict[str, str]:
    return {
        "HX-Request": "true",
        "HX-Target": target,
        "HX-Current-URL": f"http://testserver{at}",
    }


class Shop(Project):
    """Alice's project at the console: main has the endpoint, dev has none."""

    branches_as_new: ClassVar = {"main": True, "dev": False}
    dev_id: str

    @property
    def main_id(self) -> str:
        return self.branch_id

    @property
    def url(self) -> str:
        return f"/projects/{self.id}"

    @property
    def endpoint_url(self) -> str:
        return f"{self.url}/endpoints/{self.endpoint_id}"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A running service, of which the console in this process is the console."""
    with session_stack() as running:
        django_settings.MANAGEMENT_API_URL = running.api_url
        yield running


def signed_in(api: Client) -> Person:
    person = Person(Browser(), api)
    answer = person.post("/sign-in", {"key": api.key})
    assert answer.status_code == 302, answer.content.decode()
    return person


@pytest.fixture(scope="session")
def left_as_new() -> list[Shop]:
    """Shops that earlier tests have left as they found them."""
    return []


@contextlib.contextmanager
def _person(api: Client) -> Iterator[Person]:
    person = signed_in(api)
    yield person
    # A Postgres runs for each shop: too many would slow down the tests that follow.
    person.api.delete_projects()


@pytest.fixture
def alice(
    request: pytest.FixtureRequest, stack: Stack, left_as_new: list[Shop]
) -> Iterator[Person]:
    if "shop" not in request.fixturenames:
        with _person(stack.client()) as person:
            yield person
    else:
        # The owner of the shop, which the fixture `shop` deletes.
        yield signed_in(left_as_new[-1].client if left_as_new else stack.client())


@pytest.fixture
def bob(stack: Stack) -> Iterator[Person]:
    with _person(stack.client()) as person:
        yield person


@pytest.fixture(scope="session")
def carol(stack: Stack) -> Iterator[Person]:
    """The owner of a project that no test changes."""
    with _person(stack.client()) as person:
        yield person


@pytest.fixture
def visitor() -> Browser:
    """A user who is not signed in. The console may have no API."""
    return Browser()


@pytest.fixture
def shop(stack: Stack, alice: Person, left_as_new: list[Shop]) -> Iterator[Shop]:
    made = left_as_new.pop().woken() if left_as_new else _shop(stack, alice)
    yield made
    if made.is_as_new():
        left_as_new.append(made)
    else:
        alice.api.delete_projects()


@pytest.fixture(scope="session")
def still_shop(stack: Stack, carol: Person) -> Shop:
    """Carol's project, which is just like Alice's."""
    return _shop(stack, carol)


def _shop(stack: Stack, person: Person) -> Shop:
    made = Shop.create(stack, person.api, name="shop")
    made.dev_id = made.new_branch_id(name="dev")
    return made


@pytest.fixture(scope="module")
def run_sql(carol: Person, still_shop: Shop) -> Any:
    """Returns a function that sends a query as Carol and returns the page with the answer."""

    def ask(sql: str, *, htmx: bool = False, read_only: bool = True, **fields: str) -> Page:
        data = {
            "branch": still_shop.main_id,
            "database": "neondb",
            "role": "neondb_owner",
            "sql": sql,
            **({"read_only": "on"} if read_only else {}),
            **fields,
        }
        path = f"{still_shop.url}/query"
        answer = carol.htmx_post(path, data, at=path) if htmx else carol.post(path, data)
        assert answer.status_code == 200
        return Page(answer)

    return ask


@dataclass
class Misbehaving:
    """A server in place of the API that answers as a test chooses, and can fail as a network
    does."""

    url: str
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    # The status and body of the answer, by the end of the path, instead of the usual answer.
    apart: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    # Answers wait until this is set. It is set unless a test clears it.
    may_answer: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    # The bodies of the requests that had one.
    sent: list[bytes] = field(default_factory=list)
    # The idempotency keys of the requests that had one.
    once: list[str] = field(default_factory=list)
    # If set, makes the body of each answer from the requested path.
    respond: Callable[[str], bytes] | None = None
    # Seconds between two bytes of the body, and between two headers.
    pause: float = 0.0
    # The announced length of the body, if it is not the real one: the connection is then closed
    # half-way.
    length: int = 0

    def asked_for(self, words: str) -> int:
        """Return how many requests contained these words."""
        return sum(words in one for one in self.asked)

    def refuse(self, status: int, message: str = "", **headers: str) -> None:
        self.status = status
        self.headers = headers
        self.body = json.dumps({"request_id": "req-1", "code": "", "message": message}).encode()


@pytest.fixture
def misbehaving(settings: Any) -> Iterator[Misbehaving]:
    behaviour = Misbehaving(url="")
    behaviour.may_answer.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> Any:
            # The server looks for do_GET, do_POST and so on.
            return self.answer if name.startswith("do_") else super().__getattribute__(name)

        def answer(self) -> None:
            behaviour.asked.append(f"{self.command} {self.path}")
            if length := int(self.headers.get("Content-Length") or 0):
                behaviour.sent.append(self.rfile.read(length))
            behaviour.once.extend(self.headers.get_all("Idempotency-Key") or [])
            behaviour.may_answer.wait(30)
            # The client may have closed the connection.
            with contextlib.suppress(ConnectionError):
                self.send()

        def send(self) -> None:
            path = self.path.partition("?")[0]
            usual = (behaviour.status, behaviour.body)
            if behaviour.respond:
                usual = (behaviour.status, behaviour.respond(self.path))
            found = (one for end, one in behaviour.apart.items() if path.endswith(end))
            status, body = next(found, usual)
            self.send_response(status)
            for name, value in behaviour.headers.items():
                self.send_header(name, value)
                if behaviour.pause:
                    self.flush_headers()
                    time.sleep(behaviour.pause)
            self.send_header("Content-Length", str(behaviour.length or len(body)))
            self.end_headers()
            at_once = 1 if behaviour.pause else len(body) or 1
            for start in range(0, len(body), at_once):
                self.wfile.write(body[start : start + at_once])
                time.sleep(behaviour.pause)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    behaviour.url = f"http://127.0.0.1:{server.server_port}/api/v2"
    yield behaviour
    behaviour.may_answer.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def dave(misbehaving: Misbehaving, settings: Any) -> Person:
    """A user who is signed in at the server of `misbehaving`. Tests with him need no service."""
    settings.MANAGEMENT_API_URL = misbehaving.url
    misbehaving.body = b'{"login": "dave"}'
    person = signed_in(Client(misbehaving.url, "daves-key"))
    misbehaving.body = b"{}"
    misbehaving.asked.clear()
    return person


# In a process of its own, because this one is the console's, and with its own state directory.
DOCUMENT = """
import sys, tests.environment, django
django.setup()
from django.test import Client
sys.stdout.buffer.write(Client().get("/api/v2/openapi.json").content)
"""


@pytest.fixture(scope="session")
def document() -> Any:
    """The OpenAPI document that Perch's API publishes."""
    settings = {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    made = subprocess.run(
        [sys.executable, "-c", DOCUMENT],
        cwd=Path(__file__).parents[2],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(made.stdout)
