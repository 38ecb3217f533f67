"""The console's forms. They check only what a user can mistype; the API checks what is allowed."""

import secrets
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

from django import forms

from console.api_errors import Refused
from console.api_results import Branch, Endpoint, Project, Region

PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "off"}
DEFAULTED = {"autocomplete": "off", "placeholder": "default"}

# The most projects offered in a list of choices. Further ones cannot be chosen.
PROJECTS_OFFERED = 100

# The form's fields whose names differ from the API's, by the API's name.
FIELDS_OF_ATTRIBUTES = {
    "autoscaling_limit_min_cu": "min_cu",
    "autoscaling_limit_max_cu": "max_cu",
    "suspend_timeout_seconds": "suspend_timeout",
    "key_name": "name",
    "expires_at": "lifetime",
    "role_name": "name",
    "database_name": "name",
    "source_branch_id": "source_id",
    "target_branch_id": "target_id",
}


class OpenChoiceField(forms.ChoiceField):
    """A choice that only the API checks: what is on offer may change after the page was made."""

    def valid_value(self, value: Any) -> bool:
        return True


def offer(form: forms.Form, name: str, choices: Iterable[tuple[str, str]]) -> None:
    """Fill a field's choices. The present choice is kept even if it is no longer on offer."""
    offered = list(choices)
    chosen = form.data.get(name, "")
    if chosen and chosen not in dict(offered):
        offered.append((chosen, chosen))
    cast(forms.ChoiceField, form.fields[name]).choices = offered


def offer_branches(form: forms.Form, name: str, branches: Iterable[Branch]) -> None:
    offer(form, name, ((branch.id, branch_in_list(branch)) for branch in branches))


def project_in_list(project: Project) -> str:
    return project.id if project.name == project.id else f"{project.name} · {project.id}"


def branch_in_list(branch: Branch) -> str:
    """Return a branch's name for a list. With its id it would be cut off on a phone, and the name
    is unique in the project."""
    return f"{branch.name} (default)" if branch.default else branch.name


class ProjectForm(forms.Form):
    name = forms.CharField(
        required=False,
        help_text="Left empty, the project is named after its id.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}),
    )
    region_id = OpenChoiceField(label="Region", required=False)

    def offer_regions(self, regions: Iterable[Region]) -> None:
        found = list(regions)
        offer(self, "region_id", ((region.id, region.name) for region in found))
        if not found and not self.is_bound:
            del self.fields["region_id"]
        self.initial.setdefault(
            "region_id", next((region.id for region in found if region.default), "")
        )


class RenameForm(forms.Form):
    name = forms.CharField(widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}))


class ConfirmForm(forms.Form):
    """Confirms a deletion: the thing's id, or what else identifies it, must be typed."""

    # Not stripped: a name made by SQL may begin or end with blanks, and so may pasted text. The
    # comparison below accepts both.
    typed = forms.CharField(required=False, strip=False, widget=forms.TextInput)

    def __init__(self, *args: Any, expected: str, what: str = "id", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.expected = expected
        field = self.fields["typed"]
        field.label = f"Type its {what} to confirm"
        field.widget.attrs = {**PLAIN, "autofocus": True, "data-expected": expected}

    def clean_typed(self) -> str:
        typed = str(self.cleaned_data["typed"])
        if self.expected not in (typed, typed.strip()):
            raise forms.ValidationError(f"That is not {self.expected}.")
        return typed


class EmptyForm(forms.Form):
    """Has no fields: it only confirms an action."""


class OnceForm(forms.Form):
    """Confirms an action that is to happen once, however often the form is sent."""

    once = forms.RegexField(r"\A[A-Za-z0-9_-]{1,64}\Z", required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"once": new_once()})

    @contextmanager
    def renewed_when_refused(self) -> Generator[None]:
        """Make a new idempotency key if the server refuses, as it would repeat its refusal for the
        old one. If no answer arrived, the key stays: the request may have taken effect."""
        try:
            yield
        except Refused:
            self.data = {"once": new_once()}
            raise


def new_once() -> str:
    """Return a new idempotency key, for one press of a button."""
    return secrets.token_urlsafe(16)


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


def split_lines(text: str) -> list[tuple[str, str, str]]:
    """Return the name, the equals sign and the value of each line that is not blank."""
    split = (line.partition("=") for line in text.splitlines() if line.strip())
    return [(name.strip(), equals, value.strip()) for name, equals, value in split]
