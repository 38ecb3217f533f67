"""The router of the API's resources. It is ninja's router, except that
`controlplane.api.http.rendering` renders what a view returns, and the result is sent unchanged."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import Router as NinjaRouter
from ninja.errors import ValidationError

from controlplane.api.http.rendering import Render, as_json, renderer

JSON = "application/json; charset=utf-8"


class Router(NinjaRouter):
    def add_api_operation(
        self, path: str, methods: list[str], view_func: Callable[..., Any], **options: Any
    ) -> Any:
        if "response" not in options:
            raise TypeError(f"{methods} {path}: name the schema of its answer, response=…")
        parameters: set[str] = set()
        rendered = _rendered(view_func, options["response"], parameters)
        # Rendered responses use the fields' aliases, so the document must show aliases as well.
        super().add_api_operation(path, methods, rendered, **options | {"by_alias": True})
        for model in self.path_operations[path].operations[-1].models:
            if model.__ninja_param_source__ == "query":
                parameters.update(model.__ninja_flatten_map__)


def _rendered(
    view: Callable[..., Any], response: Any, parameters: set[str]
) -> Callable[..., HttpResponseBase]:
    """Wrap the view so that its return value is rendered by the schema of its status. A response
    object that the view returns is passed on unchanged. A request with a query parameter that is
    not one of `parameters` is refused, because it would be without effect."""
    schemas = response if isinstance(response, dict) else {200: response}
    renders = {status: renderer(schema) for status, schema in schemas.items()}
    (usual,) = schemas

    @wraps(view)
    def answering(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        if unknown := request.GET.keys() - parameters:
            known = f"it has {', '.join(sorted(parameters))}" if parameters else "it has none"
            words = f"this call has no such parameter: {known}"
            raise ValidationError(
                [
                    {"type": "unknown", "loc": ("query", one), "msg": words}
                    for one in sorted(unknown)
                ]
            )
        answer, status = view(request, **arguments), usual
        if isinstance(answer, HttpResponseBase):
            return answer
        if isinstance(answer, tuple):
            status, answer = answer
        render: Render | None = renders[status]
        body = as_json(answer if render is None else render(answer))
        return HttpResponse(body, status=status, content_type=JSON)

    return answering
