"""The attributes of a resource, as callers send them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Attributes(BaseModel):
    """The attributes of a resource, of which a caller sends some. A text is no number, and neither
    is true or false: what a field is not, it is not made."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        return {name: value for name, value in sent.items() if value is not None}
