"""A web server as the API's, in a hurry: what they wait for half a minute, it
waits for half a second. Run by gunicorn; it answers with what it was sent."""

from collections.abc import Callable, Iterable
from typing import Any

from controlplane.api.buffering_worker import BufferingWorker

LARGE = b"x" * (32 << 20)


class HastyWorker(BufferingWorker):
    head_within = body_within = taken_within = 0.5


class Answer(list[bytes]):
    """Whole, like Django's, and tells when it was closed."""

    streaming = False
    closed = 0

    def close(self) -> None:
        Answer.closed += 1


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """`/large` is answered at length, `/closed` with how many answers were let go of."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    match environ["PATH_INFO"]:
        case "/large":
            return Answer([LARGE])
        case "/closed":
            return Answer([str(Answer.closed).encode()])
        case _:
            return Answer([environ["wsgi.input"].read()])
