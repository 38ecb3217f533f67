"""The API's gunicorn worker: what gunicorn itself refuses, Django unseen, is JSON as well."""

import json
import uuid
from http import HTTPStatus
from typing import Any

from gunicorn import util
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.gthread import ThreadWorker

STATUS_OF = {
    LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
}


class JsonErrorsWorker(ThreadWorker):  # type: ignore[misc] # gunicorn has no types
    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Answer a request that could not be parsed, or that no handler has answered."""
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
        if isinstance(exc, ParseException):
            status = STATUS_OF.get(type(exc), HTTPStatus.BAD_REQUEST)
            message = f"invalid request: {exc}"
            self.log.warning("client=%s status=%d error=%r", addr, status, str(exc))
        else:
            self.log.error("client=%s status=%d", addr, status, exc_info=exc)
        body = json.dumps({"request_id": str(uuid.uuid4()), "code": "", "message": message})
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            util.write_nonblock(client, (head + body).encode("ascii"))
        except OSError as error:
            self.log.debug("client=%s error=%r", addr, str(error))
