"""A receiver of OTLP over HTTP, on loopback: a collector that keeps the spans it gets."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Received:
    """A span. Ids are hexadecimal; the times are in Unix seconds."""

    service: str
    name: str
    trace: str
    id: str
    # "" for the first span of a trace.
    parent: str
    began: float
    ended: float
    about: dict[str, str]
    failed: bool


@dataclass
class TraceReceiver:
    url: str = ""
    spans: list[Received] = field(default_factory=list)

    def in_trace(self, trace: str) -> list[Received]:
        return [span for span in self.spans if span.trace == trace]

    def await_span(self, name: str, **about: str) -> Received:
        """Wait for a span with this name and these of Perch's attributes."""
        wanted = {f"perch.{key}": value for key, value in about.items()}.items()

        def found() -> list[Received]:
            return [one for one in self.spans if one.name == name and wanted <= one.about.items()]

        wait_for(found, f"the span {name} {about}")
        return found()[0]

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_read(named["service.name"], span) for span in scope.spans]


def _read(service: str, span: Span) -> Received:
    values = {one.key: one.value for one in span.attributes}
    return Received(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began=span.start_time_unix_nano / 1e9,
        ended=span.end_time_unix_nano / 1e9,
        about={key: value.string_value for key, value in values.items()},
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
    )


@contextmanager
def trace_receiver() -> Iterator[TraceReceiver]:
    receiver = TraceReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            receiver.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()
