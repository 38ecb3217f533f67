"""Every invalid request gets JSON that says what is wrong, never HTML and never a 500."""

import socket
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.controlplane.fields import NO_PROJECTS
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack

JSON = {"Content-Type": "application/json"}


class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            *(b"{", b"nonsense", b'{"endpoint": }', b"\xff\xfe\x00", b"NaN garbage"),
            b'{"endpoint": {"branch_id": "x", "type": "read_write"}',
            b'{"endpoint": {"branch_id": "\xff", "type": "read_write"}}',
            *(b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000),
        ],
    )
    def test_not_json(self, standing: Project, body: bytes) -> None:
        path = standing.path + "/endpoints"
        status, message = refusal(standing.client.call("POST", path, data=body, headers=JSON))
        assert status == 400
        assert message.startswith("invalid request: decode application/json")

    @pytest.mark.parametrize(
        "body",
        [
            *("null", "[]", "7", '"text"', "true", "{}", '{"endpoint": null}'),
            *('{"endpoint": []}', '{"endpoint": [[]]}', '{"endpoint": "x"}', '{"endpoint": 7}'),
            '{"endpoint": {"branch_id": null, "type": "read_write"}}',
            '{"endpoint": {"branch_id": 7, "type": "read_write"}}',
            '{"endpoint": {"branch_id": ["br"], "type": "read_write"}}',
            '{"endpoint": {"branch_id": "\\ud800", "type": "read_write"}}',
            '{"endpoint": {"branch_id": "a\\u0000b", "type": "read_write"}}',
            '{"endpoint": {"branch_id": "br-a-b-1", "type": {"a": 1}}}',
        ],
    )
    def test_wrong_types(self, standing: Project, body: str) -> None:
        path = standing.path + "/endpoints"
        status, message = refusal(standing.client.call("POST", path, data=body, headers=JSON))
        assert (status, message.startswith("invalid request: decode")) == (400, True)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("autoscaling_limit_max_cu", "NaN"),
            ("autoscaling_limit_max_cu", "Infinity"),
            ("autoscaling_limit_max_cu", "-Infinity"),
            ("autoscaling_limit_max_cu", "1e999"),
            ("autoscaling_limit_max_cu", "-1"),
            ("autoscaling_limit_max_cu", "9" * 400),
            ("suspend_timeout_seconds", "1e999"),
            ("suspend_timeout_seconds", "9" * 400),
            ("suspend_timeout_seconds", "NaN"),
            ("suspend_timeout_seconds", "2.5"),
            ("suspend_timeout_seconds", "false"),
            ("autoscaling_limit_min_cu", "true"),
            ("provisioner", '"' + "x" * 33 + '"'),
            ("pooler_enabled", '"perhaps"'),
            ("disabled", "7"),
            ("name", '"\\ud800"'),
            ("name", '"\\u0000"'),
            ("name", '"' + "x" * 65 + '"'),
            ("settings", '{"pg_settings": {"work_mem": "\\u0000"}}'),
            ("settings", '{"pg_settings": {"\\ud800": "1"}}'),
            ("settings", '{"pg_settings": {"work_mem": NaN}}'),
            ("settings", '{"pg_settings": {"work_mem": null}}'),
        ],
    )
    def test_values_far_out_of_range(self, standing: Project, name: str, value: str) -> None:
        before = standing.endpoint()
        body = f'{{"endpoint": {{"{name}": {value}}}}}'
        response = standing.client.call("PATCH", standing.endpoint_path(), data=body, headers=JSON)
        status, message = refusal(response)
        assert status == 400
        assert f"endpoint.{name}" in message
        assert standing.endpoint() == before

    def test_too_long(self, alice: Client) -> None:
        response = alice.call("POST", "/projects", data=b"x" * 3_000_000, headers=JSON)
        status, message = refusal(response)
        assert (status, message) == (413, "a body may have at most 1048576 bytes")
        assert alice.get("/projects") == NO_PROJECTS

    def test_without_a_length(self, alice: Client) -> None:
        pieces = iter([b'{"project":', b"{}}"])
        assert refusal(alice.call("POST", "/projects", data=pieces, headers=JSON))[0] == 411


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            *("", "/", "/nothing", "/projects/", "/projects/x/y/z", "/projects//endpoints"),
            *("/%2e%2e/healthz", "/projects/%00", "/%ff%fe", "/%F0%9F%A6%A9"),
            *("/projects/a/endpoints/b/c", "/PROJECTS", "/users"),
        ],
    )
    def test_unknown(self, alice: Client, path: str) -> None:
        status, message = refusal(alice.call("GET", path))
        assert (status, message.startswith("not found: ")) == (404, True)

    @pytest.mark.parametrize("path", ["/projects/%ff", "/projects/%F0%9F", "/projects/a%0Ab"])
    def test_unknown_ids(self, alice: Client, path: str) -> None:
        assert refusal(alice.call("GET", path)) == (404, "project not found")

    @pytest.mark.parametrize(
        "path", ["/projects?search=%00", "/projects?cursor=a%00b", "/projects/x/operations?%00=1"]
    )
    def test_a_nul_in_the_query(self, alice: Client, path: str) -> None:
        assert refusal(alice.call("GET", path))[0] == 400

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "FETCH"])
    def test_unknown_methods(self, alice: Client, method: str) -> None:
        response = alice.call(method, "/projects")
        assert refusal(response) == (405, "method not allowed")
        assert set(response.headers["Allow"].split(", ")) == {"GET", "POST"}


class TestRequestsBeforeAnyHandler:
    def test_an_address_that_is_too_long(self, alice: Client) -> None:
        assert refusal(alice.call("GET", "/projects?search=" + "x" * 9000))[0] == 414

    def test_a_header_that_is_too_long(self, alice: Client) -> None:
        response = alice.call("GET", "/projects", headers={"X-Long": "x" * 10_000})
        assert refusal(response)[0] == 431

    @pytest.mark.parametrize(
        "request_text",
        [b"nonsense\r\n\r\n", b"GET /api/v2/projects HTTP/9\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"],
    )
    def test_a_request_that_is_not_http(self, stack: Stack, request_text: bytes) -> None:
        address = urlsplit(stack.api_url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            connection.sendall(request_text)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"Content-Type: application/json" in head
        assert body.startswith(b'{"request_id": ')


class TestLeniency:
    """Requests that existing clients send, although a strict reading of the API would refuse
    them."""

    def test_unknown_fields_are_ignored(self, standing: Project) -> None:
        before = standing.endpoint()
        body = {"endpoint": {"id": standing.endpoint_id, "new": {"a": [1]}}, "more": None}
        answer = standing.client.patch(standing.endpoint_path(), body)
        assert answer == {"endpoint": before, "operations": []}

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "application/json"},
            {"Content-Type": "text/plain; charset=latin-1"},
            {"Accept": "text/html"},
            {"Accept": ""},
        ],
    )
    def test_an_action_needs_no_body_and_no_headers(
        self, standing: Project, headers: dict[str, str]
    ) -> None:
        path = standing.endpoint_path(rest="/start")
        response = standing.client.call("POST", path, data=b"", headers=headers)
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("application/json")

    def test_the_content_type_of_a_body_does_not_matter(self, standing: Project) -> None:
        for content_type in ("application/x-www-form-urlencoded", "text/plain", ""):
            response = standing.client.call(
                "PATCH",
                standing.endpoint_path(),
                data=b'{"endpoint": {"name": "lenient"}}',
                headers={"Content-Type": content_type},
            )
            assert response.json()["endpoint"]["name"] == "lenient", content_type


class TestRequestIds:
    def test_a_request_id_of_the_caller_is_returned(self, alice: Client) -> None:
        for method, path in (("GET", "/projects/x"), ("GET", "/nothing"), ("PUT", "/projects")):
            headers = {"X-Request-ID": "trace-7:a.b_c"}
            response = alice.call(method, path, headers=headers)
            assert response.json()["request_id"] == "trace-7:a.b_c"
            assert response.headers["x-neon-ret-request-id"] == "trace-7:a.b_c"

    @pytest.mark.parametrize("given", [None, "", "x" * 65, "<b>", "a b", "é"])
    def test_an_invalid_request_id_is_replaced(self, alice: Client, given: str | None) -> None:
        headers: dict[str, Any] = {"X-Request-ID": given.encode()} if given is not None else {}
        response = alice.call("GET", "/projects/x", headers=headers)
        assert str(uuid.UUID(response.json()["request_id"])) == response.json()["request_id"]


def test_answers_are_neither_cached_nor_sniffed(alice: Client) -> None:
    for response in (alice.call("GET", "/projects"), requests.get(alice.api_url, timeout=10)):
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
