"""What an endpoint's owner may set, with everything one has to know to do so; for the API."""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.compute.postgres_settings import (
    ALLOWED,
    KnownSettings,
    written_range,
    written_value,
)


@dataclass(frozen=True)
class Offered:
    """A setting that an endpoint of some size may be given."""

    name: str
    # bool, integer, real, enum or string
    type: str
    # In Postgres's words.
    description: str
    # As the endpoint has it while nothing else is said; written like `min` and `max`.
    default: str
    # Of a bare number, as "kB" or "8kB".
    unit: str | None
    min: str | None
    max: str | None
    # Of an enum alone.
    values: list[str] | None


def offered(
    *,
    max_cu: float,
    storage: int | None = None,
    known: KnownSettings,
    defaults: Mapping[str, str],
) -> list[Offered]:
    """All that an endpoint of up to `max_cu` may be given, by name, where its plan allows a branch
    `storage` bytes; nothing as long as nothing is known. `defaults` go before Postgres's own."""
    found = []
    for name in sorted(ALLOWED.keys() & known.keys()):
        one = known[name]
        is_number = one.vartype in ("integer", "real")
        low, high = (
            written_range(name, one, max_cu=max_cu, storage=storage) if is_number else ("", "")
        )
        found.append(
            Offered(
                name=name,
                type=one.vartype,
                description=one.about,
                default=defaults.get(name) or written_value(one.default, one),
                unit=one.unit,
                min=low or None,
                max=high or None,
                values=list(one.values) if one.vartype == "enum" else None,
            )
        )
    return found
