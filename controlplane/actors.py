"""Who is behind what is done now: a caller of the API, a client of the proxy, or the platform.

Set where somebody comes in, read where operations and events are written. Held in a context
variable, as what lies between passes on rules and rows, and should not have to pass on this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class ActorType(StrEnum):
    USER = "user"  # a request with an API key; its name is the key's
    CLIENT = "client"  # a connection through the proxy; its name is the role's
    IDLENESS = "idleness"  # nobody used the endpoint
    CHECK = "check"  # the platform looks whether data is sound and endpoints answer
    EXPIRY = "expiry"  # a time that somebody has set has come
    RETRY = "retry"  # a request to try again what has failed; its name is the key's
    SQL = "sql"  # a statement in a compute; whose, it does not say
    PLATFORM = "platform"  # everything else that nobody asked for


@dataclass(frozen=True, slots=True)
class Actor:
    """`address` is an IP address, "" where none is known."""

    type: ActorType
    name: str = ""
    api_key_id: int | None = None
    address: str = ""


PLATFORM = Actor(ActorType.PLATFORM)
IDLENESS = Actor(ActorType.IDLENESS)
CHECK = Actor(ActorType.CHECK)
EXPIRY = Actor(ActorType.EXPIRY)
SQL = Actor(ActorType.SQL)

_current: ContextVar[Actor] = ContextVar("actor", default=PLATFORM)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Have everything in this block, in threads and tasks that copy the context too, be done by
    the actor."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def current_actor() -> Actor:
    """The platform itself outside of any block."""
    return _current.get()
