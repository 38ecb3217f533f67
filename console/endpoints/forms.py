"""The forms that create, change and reassign an endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from console.api.resources.endpoints import Endpoint
from console.forms.compute_fields import SizeSelect, SuspendSelect
from console.forms.endpoint_settings import ENDPOINT_SETTINGS, EndpointSetting
from console.forms.fields import DEFAULTED, PLAIN, OpenChoiceField, split_lines


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
    if setting.kind is str:
        widget = forms.TextInput(attrs={**PLAIN, **DEFAULTED})
        return forms.CharField(widget=widget, **given)
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
        """Return `present` with the changes made on the page.

        The API accepts the Postgres settings only as a whole. What others have changed since the
        page was made is kept.
        """
        typed: dict[str, str] = self.cleaned_data["pg_settings"]
        page_text = self.data.get(self.add_initial_prefix("pg_settings"), "")
        before = {name: value for name, _, value in split_lines(page_text)}
        kept = {name: present[name] for name in present if name in typed or name not in before}
        return kept | {name: typed[name] for name in typed if typed[name] != before.get(name)}
