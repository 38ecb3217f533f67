"""Fields that callers of this API know and this server has nothing behind: a request that sends one
is refused, in words that say what there is instead. Taking it without effect would be worse.

    hipaa: Annotated[bool | None, NotOffered("…", unless=(False,))] = None
"""

from collections.abc import Callable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# The type of such a complaint among pydantic's, and the code of its answer.
NOT_OFFERED = "not_offered"


class NotOffered:
    """Annotates a field that is refused: `instead` says, as the end of a sentence, what the server
    can do. The values in `unless` say no more than what is so anyway, and are taken; with `only`,
    just the values in that are refused. Null counts as not sent (`Attributes`)."""

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
            # Of what the type allows, only this is taken.
            taken = [_schema_of(one) for one in self._unless]
            described = {"anyOf": [*taken, {"type": "null"}]} if taken else {"type": "null"}
        but = ""
        if self._only is not None:
            but = f" as {_listed(self._only)}"
        elif self._unless:
            but = f" but for {_listed(self._unless)}"
        described["description"] = f"Not offered by this server{but}: {self._instead}."
        return described

    def _judge(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        # By kind too: to Python, 0 is False.
        refused = self._only is None or _is_among(value, self._only)
        if refused and not _is_among(value, self._unless):
            raise PydanticCustomError(
                NOT_OFFERED, "not offered by this server: {instead}", {"instead": self._instead}
            )
        return validate(value)


def _schema_of(value: Any) -> JsonSchemaValue:
    """Of one value, in the words that generators of clients know."""
    if value == {}:
        return {"type": "object", "maxProperties": 0}
    return {"type": "boolean" if isinstance(value, bool) else "string", "const": value}


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in values)


def _listed(values: tuple[Any, ...]) -> str:
    words = {True: "true", False: "false"}
    return ", ".join(f"`{words[one] if isinstance(one, bool) else one}`" for one in values)
