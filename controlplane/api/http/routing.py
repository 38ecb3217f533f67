"""The router of the API's resources. It is ninja's router, except that rows are rendered here, by
the schema of the response, and the result is sent unchanged.

ninja would validate each row against its schema, dump the validated model, and write the dump as
JSON. That takes nine tenths of the time of a long list. The rows come from the services and need no
validation. So this module reads each schema once, to learn which attributes to take from a row and
how to print them. `tests/controlplane/api/test_rendering.py` compares its results with ninja's for
every kind of row. orjson writes the JSON.

One rule holds for every response: a field with a default is left out if it is None, as clients
expect. A field without a default is always present, possibly null. `required` in the OpenAPI
document says the same.
"""

import json
import types
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import Enum
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import Router as NinjaRouter
from ninja.errors import ValidationError
from pydantic import BaseModel, PlainSerializer

from controlplane.api.http.fields import in_seconds

Render = Callable[[Any], Any]
Getter = Callable[[Any], Any]
# How to read one type of row: the fields that are its attributes, a function that returns these,
# and a getter for each other field.
Reader = tuple[list[str], Callable[[Any], Iterable[Any]], list[tuple[str, Getter]]]

# Timestamps are printed in seconds, UTC, with Z (`fields.Timestamp`).
OPTIONS = orjson.OPT_OMIT_MICROSECONDS | orjson.OPT_UTC_Z
# Types whose values orjson prints correctly without conversion.
PLAIN = (str, int, float, bool, dict, UUID, Enum, type(None))


def as_json(answer: Any) -> bytes:
    try:
        return orjson.dumps(answer, option=OPTIONS)
    except TypeError:
        # A free-form field, which callers fill, contains an integer of more than 64 bits.
        return json.dumps(answer, default=_plain).encode()


def _plain(value: Any) -> str:
    return in_seconds(value) if isinstance(value, datetime) else str(value)


def renderer(annotation: Any) -> Render | None:
    """A function that converts a value of this type for `as_json`; None if no conversion is needed.

    Raises TypeError for a type that no response has used yet: add support for it here.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _optional([one for one in arguments if one is not type(None)])
    if origin in (list, Iterable):
        return _all(renderer(arguments[0]))
    if origin is dict:
        return _values(renderer(arguments[1]))
    if annotation is Any or annotation is datetime or origin is Literal:
        return None
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            return SchemaRenderer(annotation)
        if issubclass(annotation, PLAIN):
            return None
    if metadata := getattr(annotation, "__metadata__", None):
        return _annotated(arguments[0], metadata)
    raise TypeError(f"fields of the type {annotation} are not supported yet")


def _annotated(annotation: Any, metadata: Iterable[Any]) -> Render | None:
    for one in metadata:
        if isinstance(one, PlainSerializer):
            # orjson already prints timestamps like `in_seconds`.
            return None if one.func is in_seconds else one.func  # type: ignore[return-value]
    return renderer(annotation)


def _optional(others: list[Any]) -> Render | None:
    renders = [renderer(one) for one in others]
    if not any(renders):
        return None
    if len(renders) > 1:
        raise TypeError(f"a value of one of {others} would be ambiguous")
    (render,) = renders
    assert render is not None
    return lambda value: None if value is None else render(value)


def _all(render: Render | None) -> Render:
    if render is None:
        return list
    return lambda values: [render(value) for value in values]


def _values(render: Render | None) -> Render | None:
    if render is None:
        return None
    return lambda found: {name: render(value) for name, value in found.items()}


class SchemaRenderer:
    """Takes the fields of a schema from a dict or a row. Those of a row may have one of ninja's
    resolvers (`resolve_<field>`)."""

    def __init__(self, schema: type[BaseModel]) -> None:
        self._schema = schema
        # The reader of each type of row, made when the first row of that type is rendered.
        self._readers: dict[type, Reader] = {}
        # By their names in JSON. Some differ from the Python names, which pydantic reserves.
        self._fields = {
            field.serialization_alias or name: field for name, field in schema.model_fields.items()
        }
        # pydantic keeps the annotations of a field itself separately from its type.
        self._renders = {
            name: render
            for name, field in self._fields.items()
            if (render := _annotated(field.annotation, field.metadata))
        }
        self._defaults = {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in self._fields.items()
            if not field.is_required()
        }

    def __call__(self, source: Any) -> dict[str, Any]:
        answer = self._of_dict(source) if isinstance(source, dict) else self._of_row(source)
        for name, render in self._renders.items():
            answer[name] = render(answer[name])
        for name in self._defaults:
            if answer[name] is None:
                del answer[name]
        return answer

    def _of_dict(self, source: dict[str, Any]) -> dict[str, Any]:
        answer = {**self._defaults, **source}
        if answer.keys() == self._fields.keys():
            return answer
        return {name: answer[name] for name in self._fields}

    def _of_row(self, row: Any) -> dict[str, Any]:
        names, attributes, others = self._readers.get(type(row)) or self._reader_of(row)
        answer = dict(zip(names, attributes(row), strict=True))
        for name, get in others:
            answer[name] = get(row)
        return answer

    def _reader_of(self, row: Any) -> Reader:
        names: list[str] = []
        others: list[tuple[str, Getter]] = []
        for name in self._fields:
            if resolve := getattr(self._schema, f"resolve_{name}", None):
                others.append((name, resolve))
            # An attribute that only some rows have, such as a password, is not on the row's class.
            elif name in self._defaults and not hasattr(type(row), name):
                others.append((name, partial(_attribute, name, self._defaults[name])))
            else:
                names.append(name)
        reader = self._readers[type(row)] = names, _attributes(names), others
        return reader


def _attribute(name: str, default: Any, row: Any) -> Any:
    return getattr(row, name, default)


def _attributes(names: list[str]) -> Callable[[Any], Iterable[Any]]:
    """A getter of a sequence of values. For a single name, attrgetter would return the value
    itself instead of a sequence."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda source: [getattr(source, name) for name in names]


JSON = "application/json; charset=utf-8"


class Router(NinjaRouter):
    def add_api_operation(
        self, path: str, methods: list[str], view_func: Callable[..., Any], **options: Any
    ) -> Any:
        if "response" not in options:
            raise TypeError(f"{methods} {path}: name the schema of its answer, response=…")
        parameters: set[str] = set()
        rendered = _rendered_view(view_func, options["response"], parameters)
        # Rendered responses use the fields' aliases, so the document must show aliases as well.
        super().add_api_operation(path, methods, rendered, **options | {"by_alias": True})
        for model in self.path_operations[path].operations[-1].models:
            if model.__ninja_param_source__ == "query":
                parameters.update(model.__ninja_flatten_map__)


def _rendered_view(
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
