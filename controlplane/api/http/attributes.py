"""The base class of the attributes that callers send."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Attributes(BaseModel):
    """The attributes of a resource, of which a caller sends some. Values are not converted: text
    and booleans are not accepted as numbers. Null counts as absent."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        return {name: value for name, value in sent.items() if value is not None}
