"""Reads the fields of what the management API returns.

Reading is tolerant, so that the console also works with other servers of this API: unknown fields
are ignored, absent ones get a harmless value, and enum values stay strings. An answer is refused
only if a resource in it lacks its id, or another field that the console cannot do without."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Generic, Self, TypeVar, get_args, get_origin

from console.api.errors import NonsenseAnswer
from console.turns import in_turns

T = TypeVar("T")
JSONObject = Mapping[str, Any]

# An id that may be part of an address of the console.
IDENTIFIER = re.compile(r"[-a-zA-Z0-9_]+")
# Numbers of this size and above are ignored. No size in bytes comes near it.
NUMBER_LIMIT = 2**63
# No server returns shorter pages than this, however many items are requested.
MIN_PAGE_SIZE = 100
# Times of the first and the last year of Python's calendar are refused, because in another time
# zone they could be beyond it.
YEAR_LIMIT = 9999


# The fields that hold what somebody has called something.
NAMES = ("name", "owner_name")
# Letters that are written from right to left, and marks that say in which direction to write.
TURNING = re.compile(
    r"[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff"
    r"\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
ISOLATE, END = "\u2068", "\u2069"


class Name(str):
    """A name with letters or marks of another direction. It is isolated where it is shown, so that
    it changes nothing around it: by `bdi` on a page, by Unicode's isolates in a sentence."""

    __slots__ = ()

    def __html__(self) -> str:
        return f"<bdi>{html.escape(self)}</bdi>"

    def __format__(self, spec: str) -> str:
        # What the name leaves open is closed, and what it closes is opened.
        opened, closed = len(re.findall(r"[\u2066-\u2068]", self)), self.count(END)
        return format(f"{ISOLATE * (1 + closed)}{self!s}{END * (1 + opened)}", spec)


def isolated(name: str) -> str:
    """Return the name so that it can be shown. It compares, and is sent, as it is."""
    return Name(name) if TURNING.search(name) else name


def text(data: JSONObject, name: str) -> str:
    """Return the text of a field; "" if it is absent or is no text."""
    value = data.get(name)
    if not isinstance(value, str):
        return ""
    return isolated(value) if name in NAMES else value


def required(data: JSONObject, name: str) -> str:
    value = text(data, name)
    if not value:
        raise NonsenseAnswer(f"The response lacks “{name}”.")
    return value


def identifier(data: JSONObject, name: str) -> str:
    """Return the id of something; "" if there is none, or if it cannot be part of an address."""
    value = text(data, name)
    return value if IDENTIFIER.fullmatch(value) else ""


def own_id(data: JSONObject, name: str = "id") -> str:
    value = identifier(data, name)
    if not value:
        raise NonsenseAnswer(f"The response has no valid “{name}”.")
    return value


def number(data: JSONObject, name: str, default: float = 0) -> float:
    value = data.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Python's JSON parser accepts infinity, NaN and integers of any length.
    return value if is_number and value is not None and abs(value) < NUMBER_LIMIT else default


def count(data: JSONObject, name: str) -> int:
    return int(number(data, name))


def is_true(data: JSONObject, name: str) -> bool:
    return data.get(name) is True


def whole(data: JSONObject, name: str) -> int | None:
    """Return a count or a measure; None if it is absent or negative."""
    found = number(data, name, -1)
    return int(found) if found >= 0 else None


def limiting_id(data: JSONObject, name: str) -> str:
    """Return the id of what something is limited to; "" if the field is absent: no limit.

    Raises NonsenseAnswer if it holds no valid id."""
    return own_id(data, name) if data.get(name) else ""


def inner(data: JSONObject, name: str) -> JSONObject:
    """Return an object within the object; an empty one if it is absent."""
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def texts(data: JSONObject, name: str) -> list[str]:
    """Return the texts in a list; an empty list if it is absent."""
    value = data.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def moment(data: JSONObject, name: str) -> datetime | None:
    """Return a timestamp; None if it is absent, unreadable, or one of the API's zero timestamps."""
    value = text(data, name)
    if not value:
        # Most are absent in long lists, where an exception for each would take long.
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return read if YEAR_LIMIT > read.year > 2000 else None


def in_all_zones(when: datetime) -> bool:
    """Whether the time exists in every time zone."""
    return 1 < when.year < YEAR_LIMIT


def stamp(when: datetime) -> str:
    """Format a timestamp as the API accepts it, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def objects(data: object, name: str = "") -> list[JSONObject]:
    """Return the list of objects under a name or, without a name, the answer itself. Raises
    NonsenseAnswer if that is no list of objects."""
    value = data.get(name) if name and isinstance(data, Mapping) else data
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise NonsenseAnswer(
            f"The response has no list “{name}”." if name else "The response is not a list."
        )
    return value


def one(data: object, name: str) -> JSONObject:
    value = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(value, Mapping):
        raise NonsenseAnswer(f"The response has no “{name}”.")
    return value


def mapping(data: object) -> JSONObject:
    if not isinstance(data, Mapping):
        raise NonsenseAnswer("The response is not an object.")
    return data


Reader = Callable[[JSONObject, str], Any]
READERS: Mapping[object, Reader] = {
    str: text,
    bool: is_true,
    int: count,
    float: number,
    int | None: whole,
    datetime | None: moment,
    Sequence[str]: texts,
    JSONObject: inner,
}
# The id of the thing itself, without which it is refused, and that of another thing or "".
Id = Annotated[str, own_id]
OtherId = Annotated[str, identifier]
NameOrId = Annotated[str, lambda data, name: text(data, name) or text(data, "id")]


class Resource:
    """A dataclass that is read from an object of an answer: each field from the one of its name, by
    its type (`READERS`). `Annotated` gives a field of another name, or another reader."""

    @classmethod
    def read(cls, data: JSONObject) -> Self:
        return cls(**{name: read(data, of) for name, of, read in _readers(cls)})  # type: ignore[arg-type]


@cache
def _readers(kind: type[Any]) -> list[tuple[str, str, Reader]]:
    """Return each field of the dataclass, the field that it is read from, and its reader."""
    found = []
    for field in fields(kind):
        is_annotated = get_origin(field.type) is Annotated
        type_, *more = get_args(field.type) if is_annotated else (field.type,)
        of = next((one for one in more if isinstance(one, str)), field.name)
        read = next((one for one in more if callable(one)), None) or READERS[type_]
        found.append((field.name, of, read))
    return found


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    # Requests the next page; "" on the last one.
    cursor: str

    @classmethod
    def read(
        cls, data: object, name: str, read_item: Callable[[JSONObject], T], *, limit: int
    ) -> "Page[T]":
        items = [read_item(item) for item in in_turns(objects(data, name))]
        pagination = data.get("pagination") if isinstance(data, Mapping) else None
        cursor = text(pagination, "cursor") if isinstance(pagination, Mapping) else ""
        # The API returns a cursor with the last page too. A page shorter than the limit, and
        # shorter than any server's limit, is the last one.
        return cls(items, cursor if len(items) >= min(limit, MIN_PAGE_SIZE) else "")
