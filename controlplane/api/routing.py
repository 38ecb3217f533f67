"""The router of the API's resources. It is ninja's router, except that `controlplane.api.rendering`
renders what a view returns, and the result is sent unchanged."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import Router as NinjaRouter

from controlplane.api.rendering import Render, as_json, renderer

JSON = "application/json; charset=utf-8"


class Router(NinjaRouter):
    def add_api_operation(
        self, path: str, methods: list[str], view_func: Callable[..., Any], **options: Any
    ) -> Any:
        if "response" not in options:
            raise TypeError(f"{methods} {path}: name the schema of its answer, response=…")
        rendered = _rendered(view_func, options["response"])
        # Rendered responses use the fields' aliases, so the document must show aliases as well.
        return super().add_api_operation(path, methods, rendered, **options | {"by_alias": True})


def _rendered(view: Callable[..., Any], response: Any) -> Callable[..., HttpResponseBase]:
    """Wrap the view so that its return value is rendered by the schema of its status. A response
    object that the view returns is passed on unchanged."""
    schemas = response if isinstance(response, dict) else {200: response}
    renders = {status: renderer(schema) for status, schema in schemas.items()}
    (usual,) = schemas

    @wraps(view)
    def answering(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        answer, status = view(request, **arguments), usual
        if isinstance(answer, HttpResponseBase):
            return answer
        if isinstance(answer, tuple):
            status, answer = answer
        render: Render | None = renders[status]
        body = as_json(answer if render is None else render(answer))
        return HttpResponse(body, status=status, content_type=JSON)

    return answering
