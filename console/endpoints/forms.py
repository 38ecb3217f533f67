"""The forms that create, change and reassign an endpoint."""

from collections.abc import Mapping
from typing import Any

from django import forms

from console.api.resources.endpoints import Endpoint
from console.forms.fields import (
    DEFAULTED,
    FIELDS_OF_ATTRIBUTES,
    PLAIN,
    OpenChoiceField,
    split_lines,
)


class ReassignForm(forms.Form):
    branch_id = OpenChoiceField(label="New branch", help_text="Only branches without an endpoint.")


class SizeFields(forms.Form):
    """The fields of both new and existing endpoints. Only changed values are sent."""

    min_cu = forms.FloatField(
        label="Smallest size (CU)",
        required=False,
        show_hidden_initial=True,
        widget=forms.NumberInput(attrs={**DEFAULTED, "step": "any"}),
    )
    max_cu = forms.FloatField(
        label="Largest size (CU)",
        required=False,
        show_hidden_initial=True,
        widget=forms.NumberInput(attrs={**DEFAULTED, "step": "any"}),
    )
    suspend_timeout = forms.IntegerField(
        label="Suspend after (seconds)",
        required=False,
        show_hidden_initial=True,
        widget=forms.NumberInput(attrs=DEFAULTED),
        help_text="Without activity. 0 means 5 minutes, -1 means never.",
    )

    def changed_attributes(self) -> dict[str, Any]:
        """Return the API's attributes whose fields were changed, except those left empty."""
        return {
            attribute: self.cleaned_data[name]
            for attribute, name in FIELDS_OF_ATTRIBUTES.items()
            if name in self.changed_data and self.cleaned_data[name] is not None
        }


class EndpointForm(SizeFields):
    branch_id = OpenChoiceField(label="Branch", help_text="Only branches without an endpoint.")
    pooler_enabled = forms.BooleanField(
        label="Pooling",
        required=False,
        help_text="Through PgBouncer in transaction mode, at a host name of its own.",
    )
    field_order = ("branch_id", "min_cu", "max_cu", "suspend_timeout", "pooler_enabled")

    def attributes(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"branch_id": self.cleaned_data["branch_id"]}
        if self.cleaned_data["pooler_enabled"]:
            asked["pooler_enabled"] = True
        return asked | self.changed_attributes()


class EndpointSettingsForm(SizeFields):
    pg_settings = forms.CharField(
        label="Postgres settings",
        required=False,
        strip=False,
        show_hidden_initial=True,
        widget=forms.Textarea(attrs={**PLAIN, "rows": 5, "placeholder": "work_mem = 64MB"}),
        help_text="One per line: name = value.",
    )

    @staticmethod
    def initial_of(endpoint: Endpoint) -> dict[str, Any]:
        return {
            "min_cu": f"{endpoint.min_cu:g}",
            "max_cu": f"{endpoint.max_cu:g}",
            "suspend_timeout": endpoint.suspend_timeout_seconds,
            "pg_settings": "\n".join(
                f"{name} = {value}" for name, value in sorted(endpoint.pg_settings.items())
            ),
        }

    def clean_pg_settings(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        for name, equals, value in split_lines(str(self.cleaned_data["pg_settings"])):
            if not (name and equals):
                line = " ".join(part for part in (name, equals, value) if part)
                raise forms.ValidationError(f"“{line}” is not of the form name = value.")
            if name in settings:
                raise forms.ValidationError(f"{name} is set twice.")
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
