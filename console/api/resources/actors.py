"""Who caused an operation or an event: the table of the kinds of actors, and the words for them."""

from collections.abc import Mapping
from dataclasses import dataclass

from console.api.fields import text, whole


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
    # The id of the API key that was used; None if there was none, or if the server does not say.
    key_id: int | None = None

    @classmethod
    def read(cls, data: object) -> "Actor | None":
        """Return None if the server names no actor: only some servers of this API do."""
        if not isinstance(data, Mapping) or not text(data, "type"):
            return None
        key_id = whole(data, "api_key_id")
        return cls(text(data, "type"), text(data, "name"), text(data, "address"), key_id)

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


def _unknown(value: str) -> ActorKind:
    words = value.replace("_", " ")
    return ActorKind(value, words.capitalize(), words, words)


def actor_choices() -> list[tuple[str, str]]:
    return [(kind.value, kind.label) for kind in ACTOR_KINDS.values()]
