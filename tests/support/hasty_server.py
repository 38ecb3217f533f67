"""A web server like the API's with shorter timeouts: half a second instead of half a minute. It
runs under gunicorn, and answers with what it was sent."""

from collections.abc import Callable, Iterable
from typing import Any

from controlplane.api.buffering_worker import BufferingWorker

LARGE = b"x" * (32 << 20)


class HastyWorker(BufferingWorker):
    head_within = body_within = taken_within = 0.5


class Answer(list[bytes]):
    """An answer in one piece, like Django's, that counts when it is closed."""

    streaming = False
    closed = 0

    def close(self) -> None:
        Answer.closed += 1


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """`/large` has a long answer, `/closed` the number of answers that were closed."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    match environ["PATH_INFO"]:
        case "/large":
            return Answer([LARGE])
        case "/closed":
            return Answer([str(Answer.closed).encode()])
        case _:
            return Answer([environ["wsgi.input"].read()])
