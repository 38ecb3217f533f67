"""`/batch`: several GET requests in one, for clients that need the answers together, such as a page
of the console. A request costs more for its way here and its authentication than most of them do
for their answer."""

import io
from functools import cache
from typing import Annotated, Any, cast
from urllib.parse import unquote_to_bytes

import orjson
from django.core.handlers.base import BaseHandler
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpResponse
from ninja import Field, Query, Schema
from pydantic import Field as Bounds

from controlplane.api.auth import BATCH_KEY, AuthenticatedRequest
from controlplane.api.errors import error_response
from controlplane.api.fields import Text
from controlplane.api.not_offered import PREFIX
from controlplane.api.request_log import request_id
from controlplane.api.routing import JSON, Router
from controlplane.services.errors import Invalid
from controlplane.services.projects import finding_once

router = Router(tags=["batch"])

MOST_PARTS = 32
Path = Annotated[Text, Bounds(pattern="^/")]


class BatchQuery(Schema):
    path: list[Path] = Field(
        min_length=1,
        max_length=MOST_PARTS,
        description="A path of this API, with its query, such as `/projects?limit=10`; repeated, "
        f"at most {MOST_PARTS} of them.",
    )


class Part(Schema):
    status: int = Field(description="The status of the path's response", examples=[200])
    body: dict[str, Any] | list[Any] | None = Field(
        description="The path's response; null if it has none", examples=[{"regions": []}]
    )


class Parts(Schema):
    responses: list[Part] = Field(description="The responses, in the order of the paths")


@router.get("/batch", response=Parts, summary="Send several GET requests at once")
def get_batch(request: AuthenticatedRequest, query: Query[BatchQuery]) -> HttpResponse:
    """Responds to each path as to a request of its own with this API key, one after the other in
    their order. Each counts for the rate limits, and one that is refused does not affect the
    others. A batch cannot contain a batch, a stream, or what is not answered in JSON."""
    if BATCH_KEY in request.META:
        raise Invalid("a batch cannot contain a batch", fields=["path"])
    with finding_once():
        answers = [_answer(request, path) for path in query.path]
    parts = [
        {"status": one.status_code, "body": orjson.Fragment(one.content or b"null")}
        for one in answers
    ]
    return HttpResponse(orjson.dumps({"responses": parts}), content_type=JSON)


@cache
def _handler() -> BaseHandler:
    handler = BaseHandler()
    handler.load_middleware()
    return handler


def _answer(request: AuthenticatedRequest, path: str) -> HttpResponse:
    address, _, query = path.partition("?")
    part = WSGIRequest(
        {
            **request.META,
            "PATH_INFO": PREFIX + unquote_to_bytes(address).decode("latin-1"),
            "QUERY_STRING": query,
            # Without it, the path may be answered by a stream.
            "HTTP_ACCEPT": "application/json",
            "wsgi.input": io.BytesIO(),
            "perch.request_id": request_id(request),
            BATCH_KEY: request.api_key,
        }
    )
    answer = cast(HttpResponse, _handler().get_response(part))
    if not answer.headers.get("Content-Type", "").startswith("application/json"):
        return error_response(part, 400, "a batch can only contain what is answered in JSON")
    return answer
