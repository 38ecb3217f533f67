"""Who caused an operation or an event: the table of the kinds of actors, and the words for them."""

from collections.abc import Mapping
from dataclasses import dataclass

from console.api.fields import text


@dataclass(frozen=True)
class ActorKind:
    value: str
    # In a list of choices.
    label: str
    # Before the actor's name, in “by …”. If the actor has no name, `alone` is shown instead.
    before_name: str
    alone: str


ACTOR_KINDS = {
    kind.value: kind
    for kind in (
        ActorKind("user", "API key", "key", "an API key"),
        ActorKind("client", "Client connection", "client", "a client"),
        ActorKind("retry", "Retry", "a retry with key", "a retry"),
        ActorKind("idleness", "Idleness", "idleness of", "idleness"),
        ActorKind("expiry", "Expiry", "expiry of", "expiry"),
        ActorKind(
            "check", "Availability check", "an availability check of", "an availability check"
        ),
        ActorKind("sql", "SQL", "SQL of", "SQL"),
        ActorKind("platform", "Perch", "Perch,", "Perch"),
    )
}


@dataclass(frozen=True)
class Actor:
    type: str
    name: str
    # An IP address; "" if none is known.
    address: str

    @classmethod
    def read(cls, data: object) -> "Actor | None":
        """Return None if the server names no actor: only some servers of this API do."""
        if not isinstance(data, Mapping) or not text(data, "type"):
            return None
        return cls(text(data, "type"), text(data, "name"), text(data, "address"))

    @property
    def words(self) -> str:
        """The words that follow “by”."""
        kind = ACTOR_KINDS.get(self.type) or _unknown(self.type)
        return f"{kind.before_name} {self.name}" if self.name else kind.alone


def _unknown(value: str) -> ActorKind:
    words = value.replace("_", " ")
    return ActorKind(value, words.capitalize(), words, words)


def actor_choices() -> list[tuple[str, str]]:
    return [(kind.value, kind.label) for kind in ACTOR_KINDS.values()]
