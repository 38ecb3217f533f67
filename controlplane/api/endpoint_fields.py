"""The fields of requests and responses that follow from the attributes of endpoints
(`models.ATTRIBUTES`)."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    create_model,
)

from controlplane.api.http.fields import WHOLE, WITH_LETTERS, refuse_boolean, storable
from controlplane.models import ATTRIBUTES, Attribute

Model = TypeVar("Model", bound=BaseModel)


def with_request_fields(attributes: Iterable[Attribute]) -> Callable[[type[Model]], type[Model]]:
    """Add a field for each of the attributes to a class of requests. A field that was not sent is
    None. A field that the class declares itself stays as it is."""
    return _with_fields({one.name: (asked_type(one) | None, None) for one in attributes})


def with_response_fields(
    attributes: Iterable[Attribute], *, always: bool = True
) -> Callable[[type[Model]], type[Model]]:
    """Add a field for each of the attributes to a class of responses. Fields of optional attributes
    and, unless `always` is set, all others are left out of a response while they have no value. A
    field that the class declares itself stays as it is."""
    return _with_fields(
        {
            one.name: (one.kind, ...) if always and not one.is_optional else (one.kind | None, None)
            for one in attributes
        }
    )


def asked_type(attribute: Attribute) -> Any:
    """The type of the attribute in a request, with its bounds."""
    if attribute.values:
        return Literal[attribute.values]
    bounds = Field(ge=attribute.least, le=attribute.most)
    if attribute.kind is float:
        finite = Field(allow_inf_nan=False)
        return Annotated[float, bounds, finite, BeforeValidator(refuse_boolean)]
    if attribute.kind is int:
        return Annotated[int, bounds, WHOLE]
    if attribute.kind is str:
        length = StringConstraints(
            strip_whitespace=True,
            min_length=1,
            max_length=None if attribute.most is None else int(attribute.most),
        )
        return Annotated[str, length, AfterValidator(storable), WITH_LETTERS]
    return attribute.kind


def sent_attributes(request: BaseModel) -> dict[str, Any]:
    """The values of the attributes that were sent, by name, except `settings`."""
    names = ATTRIBUTES.keys() & type(request).model_fields.keys() - {"settings"}
    values = {name: getattr(request, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _with_fields(fields: dict[str, Any]) -> Callable[[type[Model]], type[Model]]:
    def decorate(model: type[Model]) -> type[Model]:
        added = {name: field for name, field in fields.items() if name not in model.model_fields}
        return create_model(
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **added,
        )

    return decorate
