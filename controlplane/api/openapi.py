"""What the API's document says of every route alike: its errors, and the headers that it takes."""

from typing import Any

from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema

from controlplane.api.idempotency import METHODS

METHOD_NAMES = ("get", "post", "put", "patch", "delete")
ERROR = {
    "title": "Error",
    "type": "object",
    "required": ["request_id", "code", "message"],
    "properties": {
        "request_id": {"type": "string", "description": "What the request has in the log."},
        "code": {
            "type": "string",
            "description": 'For programs, as "PROJECTS_LIMIT_EXCEEDED"; often empty.',
        },
        "message": {"type": "string", "description": "For people: what is wrong, what to do."},
    },
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": (
        "Printable ASCII of the caller's choice, new for each request. A second request of the "
        "same API key with it, within a day, is not done again: it gets the first one's answer, "
        "with the header `Idempotent-Replayed: true`. With another method, address or body it is "
        "refused with 422. While the first is being served, the second waits, or gets 409. "
        "Answers that say to try again (401, 408, 423, 429, 5xx) are not kept."
    ),
}
RETRY_AFTER = {
    "description": "Seconds, a whole number, after which to try again.",
    "schema": {"type": "integer", "minimum": 1},
}
REPLAYED = {
    "Idempotent-Replayed": {
        "description": "There where the answer is an earlier request's.",
        "schema": {"type": "boolean"},
    }
}
CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
FAILURES: dict[str, dict[str, Any]] = {
    "401": {"description": "The key is missing, wrong, revoked or expired."},
    "403": {"description": "The key is limited, and this is out of its reach."},
    "429": {
        "description": "Too many requests of the account or the key; nothing was done.",
        "headers": {"Retry-After": RETRY_AFTER},
    },
    "default": {"description": "What else is wrong."},
}


class DescribedApi(NinjaAPI):
    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**options)
        schema["components"]["schemas"]["Error"] = ERROR
        for methods in schema["paths"].values():
            for method in methods.keys() & METHOD_NAMES:
                methods[method] = _completed(methods[method], method.upper())
        return schema


def _completed(operation: dict[str, Any], method: str) -> dict[str, Any]:
    """A new one: ninja describes a view of two methods once, for both."""
    answers = {str(status): answer for status, answer in operation["responses"].items()}
    failures = {status: {**failure, "content": CONTENT} for status, failure in FAILURES.items()}
    if method not in METHODS:
        return {**operation, "responses": {**failures, **answers}}
    replayed = {
        status: {**answer, "headers": {**answer.get("headers", {}), **REPLAYED}}
        for status, answer in answers.items()
    }
    parameters = [*operation.get("parameters", ()), IDEMPOTENCY_KEY]
    return {**operation, "parameters": parameters, "responses": {**failures, **replayed}}
