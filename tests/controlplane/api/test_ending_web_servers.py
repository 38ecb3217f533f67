"""How the web servers of the API and the console begin and end. SIGTERM: requests in flight are
finished."""

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.controlplane.api.test_request_limits import locked_row, rename, wait_for_tries
from tests.support.another_api import another_api, is_open, started_by_procfile
from tests.support.project import Project
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for


def test_the_api_answers_what_it_has_begun(standing: Project) -> None:
    with another_api(standing.stack) as api, ThreadPoolExecutor(1) as threads:
        client = api.client(standing.client.key)
        with locked_row(standing):
            sent = threads.submit(rename, client, standing)
            wait_for_tries(standing.stack, 1)
            api.process.terminate()
            wait_for(lambda: not standing.stack.answers(api.api_url), "the end of new requests")
        assert sent.result().status_code == 200
        assert api.process.wait(20) == 0


@dataclass
class SlowApi:
    """An API whose answers wait for `may_answer`."""

    url: str
    is_asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)


@contextmanager
def slow_api() -> Iterator[SlowApi]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            slow.is_asked.set()
            slow.may_answer.wait(20)
            self.send_response(401)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    slow = SlowApi(f"http://127.0.0.1:{server.server_port}/api/v2")
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield slow
    finally:
        slow.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.thorough
def test_the_console_answers_what_it_has_begun(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/sign-in"
    with slow_api() as api, ThreadPoolExecutor(1) as threads, requests.Session() as browser:
        console = started_by_procfile(
            "web",
            PORT=str(port),
            PERCH_SECRET_KEY="a secret of the tests",
            PERCH_CONSOLE_STATE_DIR=str(tmp_path),
            MANAGEMENT_API_URL=api.url,
        )
        try:
            wait_for(lambda: is_open(port), "the console")
            page = browser.get(url, timeout=10).text
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
            assert token is not None
            form = {"csrfmiddlewaretoken": token[1], "key": "perch_wrong"}
            sent = threads.submit(browser.post, url, form, timeout=30)
            assert api.is_asked.wait(10)
            console.terminate()
            wait_for(lambda: not is_open(port), "the end of new requests")
            api.may_answer.set()
            assert "</html>" in sent.result().text
            assert console.wait(30) == 0
        finally:
            console.kill()
            console.wait(10)


def test_a_killed_api_leaves_no_worker_that_holds_its_port(stack: Stack) -> None:
    with another_api(stack) as api:
        left_by_killed(api.process, int(api.api_url.split(":")[2].partition("/")[0]))


def test_a_killed_console_leaves_no_worker_that_holds_its_port() -> None:
    port = free_port()
    program = (sys.executable, "-m", "gunicorn", "wsgiref.simple_server:demo_app")
    worker = ("--worker-class", "console.server.ConsoleWorker")
    options = (*worker, "--bind", f"127.0.0.1:{port}", "--no-control-socket")
    with subprocess.Popen([*program, *options, "--log-level", "error"], cwd=ROOT) as server:
        wait_for(lambda: answers(port), "the server")
        left_by_killed(server, port)


def left_by_killed(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Kill the server, and wait until no worker of it holds the port."""
    (child,) = psutil.Process(server.pid).children()
    # As slow as a worker on a very busy host, which does not notice its parent's end itself.
    child.suspend()
    server.kill()
    wait_for(lambda: not is_open(port), "the end of the worker")


def answers(port: int) -> bool:
    with suppress(requests.ConnectionError):
        return requests.get(f"http://127.0.0.1:{port}", timeout=5).ok
    return False


@pytest.mark.parametrize("module", ["controlplane.api.http.server", "console.server"])
def test_a_worker_class_imports_nothing_that_gevent_has_yet_to_patch(module: str) -> None:
    """gunicorn imports it before gevent patches the standard library, and Django and psycopg keep
    the locks and sockets that they find when they are imported."""
    imported = (
        f"import sys, {module}; print([m for m in ('django', 'psycopg') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", imported], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
