"""Fields of Neon's API that this server does not implement. A request that sends one is refused,
because accepting it without effect would be worse. The message says what to use instead.

    hipaa: Annotated[bool | None, NotOffered("…", unless=(False,))] = None
"""

from collections.abc import Callable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# The type of the pydantic error for such a field.
NOT_OFFERED = "not_offered"


class NotOffered:
    """Annotates a field that is refused.

    `instead` is the end of a sentence that says what the server offers in its place. Values in
    `unless` are accepted, because they describe what is the case anyway. If `only` is given, only
    the values in it are refused. Null counts as absent (see `Attributes`).
    """

    def __init__(
        self, instead: str, *, unless: tuple[Any, ...] = (), only: tuple[Any, ...] | None = None
    ) -> None:
        self._instead = instead
        self._unless = unless
        self._only = only

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        return core_schema.no_info_wrap_validator_function(self._judge, schema)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        if self._only is None:
            # Only these values and null are accepted, whatever else the field's type allows.
            taken = [_schema_of(one) for one in self._unless]
            described = {"anyOf": [*taken, {"type": "null"}]} if taken else {"type": "null"}
        but = ""
        if self._only is not None:
            but = f" as {_listed(self._only)}"
        elif self._unless:
            but = f" except {_listed(self._unless)}"
        described["description"] = f"Not offered by this server{but}: {self._instead}."
        return described

    def _judge(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        # `_is_among` compares the types too, because in Python 0 equals False.
        refused = self._only is None or _is_among(value, self._only)
        if refused and not _is_among(value, self._unless):
            raise PydanticCustomError(
                NOT_OFFERED, "not offered by this server: {instead}", {"instead": self._instead}
            )
        return validate(value)


def _schema_of(value: Any) -> JsonSchemaValue:
    """The JSON schema of a single value, in a form that client generators know."""
    if value == {}:
        return {"type": "object", "maxProperties": 0}
    return {"type": "boolean" if isinstance(value, bool) else "string", "const": value}


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in values)


def _listed(values: tuple[Any, ...]) -> str:
    words = {True: "true", False: "false"}
    return ", ".join(f"`{words[one] if isinstance(one, bool) else one}`" for one in values)
