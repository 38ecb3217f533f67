"""The types of the API's fields: which values are accepted, and how they are printed."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

# Levels of nesting that a free-form object may have; readers do not expect more.
MAX_DEPTH = 32
CONTROLS = re.compile("[\0-\x1f\x7f]")
# Unicode's bidirectional controls. With them, a name can be displayed as a different one.
REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Tabs and line ends, which a text of several lines may contain, for `str.translate`.
LAYOUT = str.maketrans("\t\n\r", "   ")
# Entries of a free-form map. Those of a larger one are not looked at. Services allow fewer.
MAX_ENTRIES = 1000
# Characters of all notes about one resource together. Lists contain the notes too.
MAX_NOTES_LENGTH = 16384
# The characters that `storable` refuses, as the inside of a regular expression's `[…]`.
_REFUSED = r"\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069"


def told(description: str, example: Any, default: Any = ...) -> Any:
    """A field with its description and an example."""
    return Field(default, description=description, examples=[example])


def found_at(path: str) -> "staticmethod[[Any], Any]":
    """The resolver of a response's field that has another name or place in the row."""
    get = attrgetter(path)
    return staticmethod(lambda row: get(row))


def found_if_any(path: str) -> "staticmethod[[Any], Any]":
    """The same for a text that is left out of the response if it is empty."""
    get = attrgetter(path)
    return staticmethod(lambda row: get(row) or None)


UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Stated:
    """Adds a validator's rule to the OpenAPI document, because pydantic cannot derive it."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        # A map whose names have a pattern: other names are refused. Generators of clients know
        # `propertyNames`, but not `patternProperties`.
        for pattern, values in described.pop("patternProperties", {}).items():
            described["additionalProperties"] = values
            described["propertyNames"] = {**described.get("propertyNames", {}), "pattern": pattern}
        return {**described, **self.keywords}


def several(names: Iterable[str]) -> str:
    """A pattern that matches one or more of these names, separated by commas."""
    either = "|".join(name.replace(".", r"\.").replace("*", r"\*") for name in names)
    return f"(?:{either})(?:,(?:{either}))*"


def one_of(names: Iterable[str]) -> Stated:
    """States that a text has any number of these names, separated by commas, or is empty."""
    return Stated(pattern=f"^(?:{several(names)})?$")


def ids_like(id_pattern: str, *, most: int) -> Stated:
    """States that a text has at most `most` ids, separated by commas, or is empty."""
    return Stated(pattern=f"^(?:{id_pattern}(?:,{id_pattern}){{0,{most - 1}}})?$")


def storable(text: str) -> str:
    """Check that Postgres can store the text and a page can show it: it is valid UTF-8 and has no
    control characters. Returns it unchanged; raises ValueError. A text may have a
    megabyte, so nothing here runs in Python for each letter."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("not valid UTF-8") from error
    if CONTROLS.search(text):
        raise ValueError("control characters are not allowed")
    if REORDERING.search(text):
        raise ValueError("characters that change the direction of writing are not allowed")
    return text


def _storable_lines(text: str) -> str:
    """Like `storable`, but allows tabs and line ends, as the text may have several lines."""
    storable(text.translate(LAYOUT))
    return text


def _few_entries(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"at most {MAX_ENTRIES:,} entries are allowed, got {len(value):,}")
    return value


def _check_notes_length(notes: dict[str, str]) -> dict[str, str]:
    if sum(map(len, notes.values())) > MAX_NOTES_LENGTH:
        raise ValueError(f"at most {MAX_NOTES_LENGTH:,} characters are allowed in total")
    return notes


def _storable_json(value: dict[str, Any]) -> dict[str, Any]:
    """Check that Postgres can store the JSON object on every level: no NaN or infinity, and only
    texts that `storable` accepts. Returns it unchanged; raises ValueError."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for part in level:
            if isinstance(part, str):
                storable(part)
            elif isinstance(part, float) and not math.isfinite(part):
                raise ValueError("NaN and infinity are not JSON")
            elif isinstance(part, dict):
                inner += [*part.keys(), *part.values()]
            elif isinstance(part, list):
                inner += part
        if not inner:
            return value
        level = inner
    raise ValueError(f"at most {MAX_DEPTH} levels are allowed")


def _postgres_identifier(text: str) -> str:
    if len(text.encode()) > 63:
        raise ValueError("at most 63 bytes are allowed")
    return text


def refuse_boolean(value: Any) -> Any:
    """Refuse true and false. Python and pydantic would accept them as the numbers 1 and 0, but a
    caller that sends one has made a mistake. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


def _to_integer(value: Any) -> Any:
    """Convert a whole number such as 300.0 to an integer, as JSON has only one kind of number."""
    value = refuse_boolean(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _point_in_time(value: Any) -> datetime:
    """Parse a time in ISO 8601 with a time zone; the result is in UTC. Raises ValueError.

    Numbers are refused, because pydantic would read them as seconds since 1970. So are times
    without a time zone, because they are ambiguous.
    """
    if not isinstance(value, str):
        raise ValueError("must be a time such as 2027-01-31T12:00:00Z")
    try:
        time = datetime.fromisoformat(value.upper())
        if time.tzinfo is None:
            raise ValueError
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("must be a time such as 2027-01-31T12:00:00Z") from None


def in_seconds(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _in_microseconds(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _in_full(time: datetime) -> str:
    return _in_microseconds(time) if time.microsecond else in_seconds(time)


_PLAIN = Stated(pattern=f"^[^{_REFUSED}]*$")
# Surrounding white space is removed, so the text must contain some other character.
WITH_LETTERS = Stated(pattern=rf"^[^{_REFUSED}]*[^{_REFUSED}\s\u0085][^{_REFUSED}]*$")
Text = Annotated[str, AfterValidator(storable), _PLAIN]
TextMap = Annotated[
    dict[Text, Text], BeforeValidator(_few_entries), Stated(maxProperties=MAX_ENTRIES)
]
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable_json)]
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=256),
    AfterValidator(storable),
    WITH_LETTERS,
]
ShortName = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=64),
    AfterValidator(storable),
    WITH_LETTERS,
]
# A note about a resource, such as the message of a commit, and the name of a note.
Note = Annotated[
    str,
    StringConstraints(max_length=8192),
    AfterValidator(_storable_lines),
    Stated(pattern=rf"^(?:[^{_REFUSED}]|[\t\n\r])*$"),
]
NoteName = Annotated[
    str, StringConstraints(min_length=1, max_length=128), AfterValidator(storable), _PLAIN
]
Notes = Annotated[
    dict[NoteName, Note], Field(max_length=50), AfterValidator(_check_notes_length), Stated()
]
# The name of a role or a database. Postgres truncates longer names.
Identifier = Annotated[
    str,
    StringConstraints(min_length=1),
    AfterValidator(storable),
    AfterValidator(_postgres_identifier),
    # The limit is 63 bytes, which JSON Schema cannot express. For ASCII, 63 characters is the same.
    Stated(**_PLAIN.keywords, maxLength=63),
]
# In `Annotated`, write the bounds of a number before this; otherwise the document lacks them.
WHOLE = BeforeValidator(_to_integer)
HistoryRetention = Annotated[
    int,
    Field(
        ge=0,
        le=2592000,
        description=(
            "Seconds for which the history of the branches is kept, limited by the account's "
            "plan; 0 keeps none."
        ),
    ),
    WHOLE,
]
PgVersion = Annotated[int, Field(ge=1, le=1000), WHOLE]
PointInTime = Annotated[datetime, BeforeValidator(_point_in_time)]
# Printed in seconds, UTC, with Z (specification, section 2).
Timestamp = Annotated[datetime, PlainSerializer(in_seconds, return_type=str)]
# Printed as the caller named it: in microseconds if it has any, UTC, with Z.
NamedMoment = Annotated[datetime, PlainSerializer(_in_full, return_type=str)]
# Printed in microseconds, UTC, with Z.
Moment = Annotated[datetime, PlainSerializer(_in_microseconds, return_type=str)]


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
