"""The log: one readable line for each record, and the same id from a request to all its effects."""

import json
import logging
import os
import socket
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import requests

import console.logs
import controlplane.logs
from tests.support.client import Client
from tests.support.log_lines import await_line, parse, read_log
from tests.support.stack import Stack

FORGED = '2026-11-21T16:20:01.123Z level=INFO process=api message="all is well"'
# Line breaks of all kinds, a terminal's escape, a change of direction, a lone surrogate.
NASTY = f'a "b" = \\ \r\n{FORGED}\n\v\f\x1c\x85\u2028\x1b[2J\u202e\udc80é'


def record(message: str = "answered", **fields: object) -> logging.LogRecord:
    made = logging.getLogger("controlplane.made").makeRecord(
        "controlplane.made", logging.WARNING, __file__, 1, message, (), None, extra=fields
    )
    controlplane.logs.ContextFilter().filter(made)
    return made


def with_trace(error: Exception) -> logging.LogRecord:
    made = record("failed")
    made.exc_info = (type(error), error, None)
    return made


@pytest.mark.parametrize("logs", [controlplane.logs, console.logs])
class TestFormat:
    def test_a_line_has_time_origin_message_and_fields(self, logs: ModuleType) -> None:
        made = record(status=200, ms=1.5, pooled=True, account=None, path="/a b")
        made.created = 1795278001.1239
        assert logs.TextFormatter("api").format(made) == (
            "2026-11-21T16:20:01.123Z level=WARNING process=api logger=controlplane.made"
            ' status=200 ms=1.5 pooled=true path="/a b" message=answered'
        )
        assert json.loads(logs.JsonFormatter("api").format(made)) == {
            "time": "2026-11-21T16:20:01.123Z",
            "level": "WARNING",
            "process": "api",
            "logger": "controlplane.made",
            "status": 200,
            "ms": 1.5,
            "pooled": True,
            "path": "/a b",
            "message": "answered",
        }

    def test_no_value_can_forge_a_line(self, logs: ModuleType) -> None:
        for made in (record(path=NASTY), record(NASTY), with_trace(ValueError(NASTY))):
            for formatter in (logs.TextFormatter("api"), logs.JsonFormatter("api")):
                line = formatter.format(made)
                assert line.splitlines() == [line]
                assert line.isascii()
                assert line.isprintable()
        assert parse(logs.TextFormatter("api").format(record(path=NASTY)))["path"] == NASTY

    def test_a_long_value_is_shortened(self, logs: ModuleType) -> None:
        line = logs.TextFormatter("api").format(record("x" * 10**6, path="y" * 10**6))
        assert len(line) < 5_000
        assert len(logs.TextFormatter("api").format(with_trace(ValueError("x" * 10**6)))) < 20_000

    def test_objects_do_not_show_their_content(self, logs: ModuleType) -> None:
        """Django's records hold the request, whose text form contains the query."""
        made = record(request={"query": "key=secret"}, job=["secret"])
        assert "secret" not in logs.TextFormatter("api").format(made)

    def test_the_context_is_that_of_the_block(self, logs: ModuleType) -> None:
        def fields() -> dict[str, str]:
            made = record()
            logs.ContextFilter().filter(made)
            return parse(logs.TextFormatter("api").format(made))

        with logs.context(request="r-1"), logs.context(operation="o-1", round=""):
            inside = fields()
            assert logs.current("request") == "r-1"
        assert (inside["request"], inside["operation"]) == ("r-1", "o-1")
        assert "round" not in inside
        assert not {"request", "operation"} & fields().keys()
        assert logs.current("request") == ""


def test_one_id_leads_from_a_request_to_the_end_of_its_operations(
    stack: Stack, alice: Client
) -> None:
    request_id = f"trace-{os.urandom(6).hex()}"
    created = alice.call(
        "POST", "/projects", json={"project": {}}, headers={"X-Request-ID": request_id}
    ).json()
    alice.finish(created)
    with stack.database() as database:
        query = "SELECT request_id FROM controlplane_operation WHERE id = %s"
        for operation in created["operations"]:
            assert database.execute(query, [operation["id"]]).fetchone() == (request_id,)
            line = await_line(stack, "worker", operation=operation["id"])
            assert (line["request"], line["process"]) == (request_id, "worker")
            assert (line["action"], line["message"]) == (operation["action"], "operation finished")
        account = database.execute(
            "SELECT account_id FROM controlplane_project WHERE id = %s", [created["project"]["id"]]
        ).fetchone()
    line = await_line(stack, "api", request=request_id)
    assert float(line.pop("ms")) > 0
    assert int(line.pop("bytes")) > 500
    assert account == (int(line.pop("account")),)
    assert line == {
        "time": line["time"],
        "level": "INFO",
        "process": "api",
        "logger": "controlplane.api.http.request_log",
        "request": request_id,
        "method": "POST",
        "path": "/api/v2/projects",
        "status": "201",
        "client": "127.0.0.1",
        "message": "answered",
    }
    alice.delete(f"/projects/{created['project']['id']}")


def test_every_request_has_one_line_whatever_its_result(stack: Stack, alice: Client) -> None:
    def lines() -> list[dict[str, str]]:
        found = read_log(stack.state_dir, "api")
        return [line for line in found if line["message"] == "answered"]

    # A line is written after its answer is sent: the lines of earlier requests precede this one.
    first = {"X-Request-ID": f"first-{os.urandom(6).hex()}"}
    alice.call("GET", "/projects", headers=first)
    await_line(stack, "api", request=first["X-Request-ID"])
    before = len(lines())
    last = {"X-Request-ID": f"last-{os.urandom(6).hex()}"}
    statuses = [
        alice.call("GET", "/projects").status_code,
        alice.call("GET", "/projects/none").status_code,
        requests.get(stack.api_url + "/projects", timeout=10).status_code,
        alice.call("PUT", "/projects").status_code,
        alice.call("GET", "/" + "x" * 9000).status_code,
        alice.call("GET", "/%0a" + FORGED, headers=last).status_code,
    ]
    assert statuses == [200, 404, 401, 405, 414, 404]
    assert await_line(stack, "api", request=last["X-Request-ID"])["path"].endswith("\n" + FORGED)
    ours = [line for line in lines()[before:] if line.get("path") != "/healthz"]
    assert [line["status"] for line in ours] == [str(status) for status in statuses]


def test_no_key_and_no_query_is_ever_logged(stack: Stack) -> None:
    client = stack.client()
    for query in (f"?key={client.key}", f"?limit={client.key}", f"?cursor=%0a{client.key}"):
        client.call("GET", f"/projects{query}")
    client.call("GET", "/users/me", headers={"X-Request-ID": f"bad id {client.key}"})
    made = client.post("/api_keys", {"key_name": "printed once"})
    for unreadable in (
        f"GET /api/v2/projects?key={client.key} HTTP/9.9",
        f"GET /api/v2/projects HTTP/1.1\r\nAuthorization Bearer {client.key}",
        f"GET /api/v2/projects HTTP/1.1\r\nAuth(orization: Bearer {client.key}",
    ):
        for url in (stack.api_url, stack.console_url):
            _send(url, unreadable + "\r\n\r\n")
    page = requests.get(f"{stack.console_url}/sign-in?key={client.key}", timeout=10)
    assert page.ok
    await_line(stack, "api", error="InvalidHeader")
    await_line(stack, "web", message="unreadable request")
    for file in (stack.state_dir / "log").iterdir():
        words = file.read_text()
        assert client.key not in words, file
        assert made["key"] not in words, file


def _send(url: str, request: str) -> None:
    """Send the request unchanged, and wait for the end of the answer."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(request.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.")
