"""The fields of a compute's size and of when it suspends: choices instead of numbers to know."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils.html import format_html
from django.utils.safestring import SafeString

# Compute units that are offered. Each brings GB_PER_CU of memory, in GB, here and at Neon.
SIZES = (0.25, 0.5, *range(1, 11), 12, 14, 16, 20, 24, 28, 32, 40, 48, 56)
GB_PER_CU = 4
OWN = "own"
# Seconds without activity, as the API takes them.
TIMES = {
    "60": "1 minute",
    "0": "5 minutes (default)",
    "900": "15 minutes",
    "3600": "1 hour",
    "28800": "8 hours",
    "86400": "1 day",
    "-1": "Never",
}


class NumberSelect(forms.Select):
    """A select of numbers. A value that is not among them is offered too."""

    def __init__(self, choices: Iterable[tuple[str, str]]) -> None:
        super().__init__(choices=[("", "Default"), *choices])

    def optgroups(self, name: str, value: list[str], attrs: Any = None) -> list[Any]:
        offered = {str(one) for one, _ in self.choices}
        further = [(one, self.words(one)) for one in value if one not in offered]
        self.choices = [*self.choices, *further]
        return super().optgroups(name, value, attrs)

    def words(self, value: str) -> str:
        return value


class SizeSelect(NumberSelect):
    def __init__(self) -> None:
        sizes = [f"{cu:g}" for cu in SIZES]
        super().__init__((cu, f"{cu} CU · {float(cu) * GB_PER_CU:g} GB") for cu in sizes)

    def words(self, value: str) -> str:
        return f"{value} CU"


class SuspendSelect(NumberSelect):
    """The usual times, and a field for other minutes. The value is in seconds."""

    def __init__(self) -> None:
        super().__init__([*TIMES.items(), (OWN, "After other minutes…")])

    def words(self, value: str) -> str:
        return f"{value} s"

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        minutes = _minutes(str(value or ""))
        return format_html(
            '<span class="own-minutes">{}<input type="number" name="{}_minutes" value="{}" min="1"'
            ' aria-label="Minutes without activity" autocomplete="off"></span>',
            super().render(name, OWN if minutes else value, attrs, renderer),
            name,
            minutes,
        )

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        value = data.get(name)
        if value != OWN:
            return value
        minutes = data.get(f"{name}_minutes", "").strip()
        # Anything else is refused by the field.
        return str(int(minutes) * 60) if _is_number(minutes) else f"{minutes} minutes"


def _minutes(value: str) -> str:
    """Return the minutes of one's own that a value stands for; "" if a choice stands for it."""
    if value.endswith(" minutes"):
        return value.removesuffix(" minutes")
    is_whole = _is_number(value) and int(value) % 60 == 0
    return str(int(value) // 60) if is_whole and value not in TIMES else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8
