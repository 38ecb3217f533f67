"""A server in front of an S3 server that fails as stores do: it is away, full or slow, answers 200
for what it has not stored, or stores only a part. It may also never answer ("hanging"), or list
nothing ("empty")."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

MODES = ("away", "full", "lying", "cut", "slow")
SLOW = 3.0  # seconds for each answer
EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
NOT_PASSED_ON = {"host", "content-length", "connection", "transfer-encoding"}


class FaultyStore:
    """Passes requests on to `target`, in the way that `mode` names; "" is without a fault."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.mode = ""
        # The methods and paths of the requests that have come in the present mode.
        self.asked: list[str] = []
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                faulty.answer(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = handle_any  # noqa: N815

            def do_POST(self) -> None:
                faulty.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def turn(self, mode: str) -> None:
        self.mode, self.asked = mode, []

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        mode = self.mode
        if mode:
            self.asked.append(f"{request.command} {request.path}")
        if mode == "away":
            request.close_connection = True
            return
        if mode == "slow":
            time.sleep(SLOW)
        while self.mode == "hanging":
            time.sleep(0.1)
        if mode == "empty" and "list-type" in request.path:
            _send(request, 200, {"Content-Type": "application/xml"}, EMPTY)
            return
        if request.command == "PUT" and mode == "full":
            _send(request, 507, {}, b"<Error><Code>InsufficientStorage</Code></Error>")
            return
        if request.command == "PUT" and mode == "lying":
            _send(request, 200, {"ETag": '"0"'}, b"")
            return
        if request.command == "PUT" and mode == "cut":
            body = body[: len(body) // 2]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in NOT_PASSED_ON}
        found = requests.request(
            request.command,
            self.target + request.path,
            headers=headers,
            data=body,
            timeout=30,
            stream=True,
        )
        content = found.raw.read(decode_content=False)
        kept = {k: v for k, v in found.headers.items() if k.lower() not in NOT_PASSED_ON}
        if request.command == "HEAD":
            kept["Content-Length"] = found.headers.get("Content-Length", "0")
        _send(request, found.status_code, kept, content)

    @contextmanager
    def running(self) -> Iterator["FaultyStore"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _send(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    if "Content-Length" not in headers:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
