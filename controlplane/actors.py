"""The current actor: a caller of the API, a client of the proxy, or the platform.

The API, the proxy and the worker's rounds set the actor. The code that writes operations and events
reads it. A context variable holds it, so that the functions in between need no parameter for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class ActorType(StrEnum):
    USER = "user"  # a request with an API key; its name is the key's
    CLIENT = "client"  # a connection through the proxy; its name is the role's
    IDLENESS = "idleness"  # the endpoint was idle for too long
    CHECK = "check"  # the platform checks that data is sound and that endpoints answer
    EXPIRY = "expiry"  # the expiry time that a user set has come
    RETRY = "retry"  # a request to retry failed operations; its name is the key's
    SQL = "sql"  # a statement in a compute; the role that sent it is not known
    PLATFORM = "platform"  # everything else that no request asked for


@dataclass(frozen=True, slots=True)
class Actor:
    """`address` is an IP address, or "" if it is not known."""

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
    """Make `actor` the current actor in this block, also in threads and tasks that copy the
    context."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def current_actor() -> Actor:
    """Return the actor of the innermost `acting_as` block; outside of any, the platform."""
    return _current.get()
