"""The API within gunicorn: its log, and its worker, which also answers in JSON when gunicorn itself
refuses a request before Django sees it."""

import gc
import json
import logging.config
import uuid
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from gunicorn import util
from gunicorn.glogging import Logger
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException

from controlplane import logs
from controlplane.api.buffering_worker import Application, BufferingWorker, RequestTooSlow
from controlplane.api.client_address import Network, client_of

STATUS_OF = {
    LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    RequestTooSlow: HTTPStatus.REQUEST_TIMEOUT,
}
# New objects between two garbage collections.
COLLECT_AFTER = 50_000


def with_client_address(application: Application, proxies: Sequence[Network]) -> Application:
    """The WSGI application, with the client's address in REMOTE_ADDR instead of a reverse
    proxy's."""

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["REMOTE_ADDR"] = client_of(
            environ.get("REMOTE_ADDR", ""), environ.get("HTTP_X_FORWARDED_FOR", ""), proxies
        )
        return application(environ, start_response)

    return served


class GunicornLogger(Logger):  # type: ignore[misc] # gunicorn has no types
    """Writes gunicorn's log lines, including those of its master process, to Perch's log. The
    application writes the access log, because it knows the account of each request."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True
        logs.begin(logs.configuration("api"))


class JsonErrorsWorker(BufferingWorker):
    def load_wsgi(self) -> None:
        super().load_wsgi()
        from django.conf import settings

        from controlplane.api.turns import TurnsByKey, turns
        from controlplane.database.base import BoundedConnection
        from controlplane.events.refusals import refusals
        from controlplane.features import features
        from controlplane.metrics import sampling

        # Imported now, and not while a client waits.
        features()
        refusals.begin()
        sampling.begin_in_thread("api")
        BoundedConnection.around_waits = turns.waiting
        self.wsgi = with_client_address(TurnsByKey().around(self.wsgi), settings.TRUSTED_PROXIES)
        # Objects that exist by now stay for the life of the process, so later collections can skip
        # them. Collections are rare, because the thousands of objects of a long list are freed by
        # reference counting anyway.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)

    def end_waits(self) -> None:
        # Imported here because gunicorn imports this module before gevent patches the standard
        # library. psycopg must be imported after the patching, so that its waits switch greenlets.
        from controlplane.api.listening import listener
        from controlplane.events.refusals import refusals

        listener.stop()
        refusals.close()

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Respond to a request that could not be parsed, or whose handling raised an exception."""
        request_id = str(uuid.uuid4())
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
        if isinstance(exc, ParseException):
            status = STATUS_OF.get(type(exc), HTTPStatus.BAD_REQUEST)
            message = f"invalid request: {exc}"
            # Log only the type of the error. Its message may contain the request line with the
            # query, and an API key.
            self._log(request_id, addr, status, error=type(exc).__name__)
        else:
            self._log(request_id, addr, status, exc_info=exc)
        from controlplane.metrics import figures

        figures.REQUESTS.labels("other", "none", status.value).inc()
        refusal = {"request_id": request_id, "code": "", "message": message, "errors": []}
        body = json.dumps(refusal)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            util.write_nonblock(client, (head + body).encode("ascii"))
        except OSError as error:
            self.log.debug("answer not sent", extra={"error": str(error)})

    def _log(
        self,
        request_id: str,
        address: Any,
        status: HTTPStatus,
        *,
        error: str | None = None,
        exc_info: BaseException | None = None,
    ) -> None:
        client = address[0] if isinstance(address, tuple) else str(address)
        fields = {"status": status.value, "client": client, "error": error}
        with logs.context(request=request_id):
            level = logging.ERROR if exc_info else logging.INFO
            self.log.log(level, "answered", extra=fields, exc_info=exc_info)
