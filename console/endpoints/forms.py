"""The forms that create, change and reassign an endpoint. A compute's size and when it suspends are
choices instead of numbers to know."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.api.resources.endpoints import Endpoint
from console.forms.endpoint_settings import ENDPOINT_SETTINGS, EndpointSetting
from console.forms.fields import PLAIN, OpenChoiceField, split_lines


class ReassignForm(forms.Form):
    branch_id = OpenChoiceField(label="New branch", help_text="Branches without an endpoint.")


class SettingFields(forms.Form):
    """The fields of an endpoint's settings. Only changed values are sent."""

    offered: Sequence[EndpointSetting] = ENDPOINT_SETTINGS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= {one.field: _field(one) for one in self.offered}

    def drop_default(self, name: str) -> None:
        """Remove the choice "Default", because there is a value already."""
        widget = self.fields[name].widget
        if isinstance(widget, forms.Select):
            widget.choices = [choice for choice in widget.choices if choice[0] != ""]


def _field(setting: EndpointSetting) -> forms.Field:
    given: dict[str, Any] = {
        "label": setting.label,
        "help_text": setting.help,
        "required": False,
        "show_hidden_initial": True,
    }
    if setting.kind is bool:
        return forms.BooleanField(**given)
    if setting.kind is int:
        return forms.IntegerField(widget=SuspendSelect(), **given)
    return forms.FloatField(widget=SizeSelect(), **given)


class EndpointForm(SettingFields):
    branch_id = OpenChoiceField(label="Branch", help_text="Branches without an endpoint.")


class EndpointSettingsForm(SettingFields):
    offered = tuple(one for one in ENDPOINT_SETTINGS if one.is_in_change_form)

    pg_settings = forms.CharField(
        label="Postgres settings",
        required=False,
        strip=False,
        show_hidden_initial=True,
        widget=forms.Textarea(attrs={**PLAIN, "rows": 5, "placeholder": "work_mem = 64MB"}),
        help_text="One per line: name = value.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # It is the largest, so it comes last.
        self.fields["pg_settings"] = self.fields.pop("pg_settings")

    def fill_in(self, endpoint: Endpoint) -> None:
        """Fill in the endpoint's settings, and offer only those that its server returned."""
        for one in self.offered:
            if one.is_returned(endpoint):
                self.initial[one.field] = one.typed(endpoint)
                self.drop_default(one.field)
            else:
                del self.fields[one.field]
        self.initial["pg_settings"] = "\n".join(
            f"{name} = {value}" for name, value in sorted(endpoint.pg_settings.items())
        )

    def clean_pg_settings(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        for name, equals, value in split_lines(str(self.cleaned_data["pg_settings"])):
            if not (name and equals):
                line = " ".join(part for part in (name, equals, value) if part)
                raise forms.ValidationError(f"“{line}” is not in the form name = value.")
            if name in settings:
                raise forms.ValidationError(f"{name} is set more than once.")
            settings[name] = value
        return settings

    def changed_pg_settings(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return `present` with the changes made on the page. The API accepts the Postgres settings
        only as a whole. What others have changed since the page was made is kept."""
        typed: dict[str, str] = self.cleaned_data["pg_settings"]
        page_text = self.data.get(self.add_initial_prefix("pg_settings"), "")
        before = {name: value for name, _, value in split_lines(page_text)}
        kept = {name: present[name] for name in present if name in typed or name not in before}
        return kept | {name: typed[name] for name in typed if typed[name] != before.get(name)}


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
