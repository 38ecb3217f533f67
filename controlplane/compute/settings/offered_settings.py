"""The settings that an endpoint's owner may set, with what an owner has to know; for the API."""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.compute.settings.postgres_settings import (
    ALLOWED,
    KnownSettings,
    written_range,
    written_value,
)


@dataclass(frozen=True)
class Offered:
    """A setting that an endpoint of a given size may have."""

    name: str
    # bool, integer, real, enum or string
    type: str
    # Postgres's own words.
    description: str
    # The value if the owner sets none; written like `min` and `max`.
    default: str
    # The unit of a bare number, for example "kB" or "8kB".
    unit: str | None
    min: str | None
    max: str | None
    # Only of an enum.
    values: list[str] | None


def offered(
    *,
    max_cu: float,
    storage: int | None = None,
    known: KnownSettings,
    defaults: Mapping[str, str],
) -> list[Offered]:
    """All settings that an endpoint of up to `max_cu` compute units may have, by name. `storage` is
    how many bytes its plan allows for a branch. Empty if `known` is. `defaults` take precedence
    over Postgres's own."""
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
