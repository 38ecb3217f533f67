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
        kind = self._kind
        name = f"“{self.name}”" if kind.value in NAMES_OF_KEYS else self.name
        return f"{kind.before_name} {name}" if self.name else kind.alone

    @property
    def label(self) -> str:
        """The name alone, beside the icon; what it is, if it has none."""
        return self.name or self._kind.label

    @property
    def shape(self) -> str:
        return self._kind.shape

    @property
    def _kind(self) -> ActorKind:
        return ACTOR_KINDS.get(self.type) or _unknown(self.type)


def _unknown(value: str) -> ActorKind:
    words = value.replace("_", " ")
    return ActorKind(value, words.capitalize(), words, words)


def actor_choices() -> list[tuple[str, str]]:
    return [(kind.value, kind.label) for kind in ACTOR_KINDS.values()]
