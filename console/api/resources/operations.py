"""Operations with their steps, events, and who caused them, as the management API returns them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from console.api.fields import (
    IDENTIFIER,
    Id,
    JSONObject,
    OtherId,
    Resource,
    inner,
    text,
    texts,
)


@dataclass(frozen=True)
class ActorKind:
    value: str
    # In a list of choices.
    label: str
    # Before the actor's name, in “by …”. If the actor has no name, `alone` is shown instead.
    before_name: str
    alone: str
    # The icon.
    shape: str = "platform"


ACTOR_KINDS = {
    kind.value: kind
    for kind in (
        ActorKind("user", "API key", "API key", "an API key", "account"),
        ActorKind("client", "Client", "client", "a client", "client"),
        ActorKind("retry", "Retry", "a retry with API key", "a retry", "account"),
        ActorKind("idleness", "Auto-suspend", "auto-suspend of", "auto-suspend", "asleep"),
        ActorKind("expiry", "Expiry", "expiry of", "expiry", "waiting"),
        ActorKind(
            "check", "Availability check", "an availability check of", "an availability check"
        ),
        ActorKind("sql", "SQL", "SQL of", "SQL", "client"),
        ActorKind("platform", "Perch", "Perch,", "Perch"),
    )
}


# The kinds whose name is that of an API key, which users choose.
NAMES_OF_KEYS = ("user", "retry")


@dataclass(frozen=True)
class Actor(Resource):
    type: str
    name: str
    # An IP address; "" if none is known.
    address: str
    # The id of the API key that was used; None if there was none, or if the server does not say.
    key_id: Annotated[int | None, "api_key_id"] = None

    def words(self, own_key: int | None = None) -> str:
        """Return the words that follow “by”. `own_key` is the id of the reader's own API key."""
        kind = self._kind
        if self._is(own_key):
            return "you (retry)" if kind.value == "retry" else "you"
        name = f"“{self.name}”" if kind.value in NAMES_OF_KEYS else self.name
        return f"{kind.before_name} {name}" if self.name else kind.alone

    def label(self, own_key: int | None = None) -> str:
        """Return the name alone, beside the icon; what it is, if it has none."""
        return "you" if self._is(own_key) else self.name or self._kind.label

    def _is(self, own_key: int | None) -> bool:
        """Whether the reader did it. Sessions from before this was stored have no `own_key`."""
        return self.key_id is not None and self.key_id == own_key

    @property
    def shape(self) -> str:
        return self._kind.shape

    @property
    def _kind(self) -> ActorKind:
        return ACTOR_KINDS.get(self.type) or _unknown(self.type)


def _actor(data: JSONObject, name: str) -> Actor | None:
    """Return None if the server names no actor: only some servers of this API do."""
    found = inner(data, name)
    return Actor.read(found) if text(found, "type") else None


def _unknown(value: str) -> ActorKind:
    words = value.replace("_", " ")
    return ActorKind(value, words.capitalize(), words, words)


def actor_choices() -> list[tuple[str, str]]:
    return [(kind.value, kind.label) for kind in ACTOR_KINDS.values()]


@dataclass(frozen=True)
class Step(Resource):
    name: str
    started_at: datetime | None
    # None while the step is under way.
    finished_at: datetime | None
    # Milliseconds.
    duration_ms: int | None
    # Further facts: {"operation_id": …} of the operation that this one waits for, {"bytes": …} etc.
    detail: JSONObject


@dataclass(frozen=True)
class Operation(Resource):
    id: Id
    project_id: OtherId
    branch_id: OtherId
    endpoint_id: OtherId
    action: str
    status: str
    # Why the operation failed, in words.
    error: str
    failures_count: int
    retry_at: datetime | None
    # Milliseconds; None if the server does not report it.
    total_duration_ms: int | None
    created_at: datetime | None
    updated_at: datetime | None
    # Only some servers of this API return the fields below; otherwise they are empty.
    # All operations of one request have the same chain id.
    chain_id: OtherId
    initiator: Annotated[Actor | None, _actor]
    # The operation that this one repeats.
    retry_of: str
    # The earlier operation of the chain whose end kept this one from beginning.
    not_run_because: OtherId
    # What was requested: a word for programs, and in words.
    kind: str
    title: str
    # Whether its failure needs no attention any more.
    superseded: bool
    # Since the request, the oldest first; only in the answer to a request for this one operation.
    steps: Annotated[Sequence[Step], lambda data, _: _steps(data)]

    @property
    def can_be_steered(self) -> bool:
        """Whether the server can cancel and retry operations: servers that know chains can."""
        return bool(self.chain_id)


def _steps(data: JSONObject) -> list[Step]:
    found = data.get("steps")
    steps = found if isinstance(found, list) else []
    return [Step.read(item) for item in steps if isinstance(item, Mapping)]


@dataclass(frozen=True)
class OfOperation(Resource):
    action: str
    # Why it failed or was cancelled; "" if it was not.
    error: str
    # Milliseconds; None if it has not ended, or if the server does not report it.
    duration_ms: int | None = None


def _of_operation(data: JSONObject, name: str) -> OfOperation | None:
    """Return None if the event is about no operation."""
    found = inner(data, name)
    return OfOperation.read(found) if found else None


@dataclass(frozen=True)
class Event(Resource):
    id: Id
    type: str
    # One sentence, for people.
    summary: str
    actor: Annotated[Actor | None, _actor]
    at: datetime | None
    project_id: OtherId
    branch_id: OtherId
    endpoint_id: OtherId
    operation_ids: Annotated[
        Sequence[str], lambda data, name: [*filter(IDENTIFIER.fullmatch, texts(data, name))]
    ]
    # By field, {"from": …, "to": …}.
    changes: JSONObject
    operation: Annotated[OfOperation | None, _of_operation]
