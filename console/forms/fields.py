"""The console's forms. They check only what a user can mistype; the API checks what is allowed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.utils import timezone
from django.utils.choices import BaseChoiceIterator
from django.utils.functional import lazy

from console.api.fields import in_all_zones, stamp
from console.api.resources.branches import Branch
from console.api.resources.projects import Project
from console.forms.endpoint_settings import ENDPOINT_SETTINGS

PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "off"}
# In what a form sends, the name of the button that only shows the API's request.
AS_CURL = "as_curl"


class OpenChoiceField(forms.ChoiceField):
    """A choice that only the API checks: what is on offer may change after the page was made."""

    def valid_value(self, value: Any) -> bool:
        return True


class Choices(BaseChoiceIterator):
    """Choices as Django needs them. Lists it goes through several times before it believes that,
    which takes long for the branches of a project."""

    def __init__(self, offered: Sequence[tuple[str, Any]]) -> None:
        self.offered = offered

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.offered)

    def __len__(self) -> int:
        return len(self.offered)


def offer(form: forms.Form, name: str, choices: Iterable[tuple[str, Any]]) -> None:
    """Fill a field's choices. The present choice is kept even if it is no longer on offer."""
    offered = list(choices)
    chosen = form.data.get(name, "")
    if chosen and chosen not in dict(offered):
        offered.append((chosen, chosen))
    cast(forms.ChoiceField, form.fields[name]).choices = Choices(offered)


def offer_branches(form: forms.Form, name: str, branches: Iterable[Branch]) -> None:
    offer(form, name, ((branch.id, branch_in_list(branch)) for branch in branches))


def offer_projects(form: forms.Form, projects: Iterable[Project]) -> None:
    """Offer the projects and, first, all of them, for what can be limited to one."""
    named = (
        (one.id, one.id if one.name == one.id else f"{one.name} · {one.id}") for one in projects
    )
    offer(form, "project_id", [("", "All projects"), *named])


def branch_in_list(branch: Branch) -> str:
    """Return a branch's name for a list. With its id it would be cut off on a phone, and the name
    is unique in the project."""
    return f"{branch.name} (default)" if branch.default else branch.name


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


class LinesField(forms.CharField):
    """A list, one entry per line."""

    def to_python(self, value: Any) -> Any:
        return value if isinstance(value, list) else lines_of(str(value or ""))

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value


class ScaledField(forms.FloatField):
    """A number in a larger unit than the API's."""

    def __init__(self, *, scale: int, **named: Any) -> None:
        super().__init__(**named)
        self.scale = scale
        self.widget.attrs["step"] = "any"


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
        self.name = ""
        field = self.fields["typed"]
        field.label = f"Type its {what} to confirm"
        field.widget.attrs = {**PLAIN, "autofocus": True, "data-expected": expected}

    @property
    def may_be_name(self) -> bool:
        """Whether something was typed that is not the id."""
        return self.is_bound and not self._is_typed(self.expected)

    def accept_name(self, name: str) -> None:
        """Accept the thing's name besides its id. No other thing may have this name."""
        if name in ("", self.expected):
            return
        self.name = name
        field = self.fields["typed"]
        field.label = "Type its name or id to confirm"
        field.widget.attrs["data-name"] = name

    def clean_typed(self) -> str:
        if AS_CURL in self.data:
            # Nothing is deleted, and the request does not contain what is typed.
            return ""
        if not self._is_typed(self.expected) and not (self.name and self._is_typed(self.name)):
            either = f"{self.name} or {self.expected}" if self.name else self.expected
            raise forms.ValidationError(f"This does not match {either}.")
        return str(self.cleaned_data["typed"])

    def _is_typed(self, expected: str) -> bool:
        typed = str(self.data.get("typed", ""))
        return expected in (typed, typed.strip())


def split_lines(text: str) -> list[tuple[str, str, str]]:
    """Return the name, the equals sign and the value of each line that is not blank."""
    split = (line.partition("=") for line in lines_of(text))
    return [(name.strip(), equals, value.strip()) for name, equals, value in split]


WORDS_OF_ATTRIBUTES = {
    **{one.attribute: one.words for one in ENDPOINT_SETTINGS},
    "branch_id": "branch",
    "expires_at": "expiry",
    "owner_name": "owner",
    "parent_id": "parent",
    "pg_version": "Postgres version",
    "region_id": "region",
}

ANY = ("", "Any")


# A label with the zone of what is typed: the reader's, which pages use for all times.
in_zone: Callable[[str], str] = lazy(
    lambda words: f"{words} ({timezone.get_current_timezone_name()})", str
)


class MomentField(forms.DateTimeField):
    """A time in the reader's zone, to the minute as browsers ask for it, or as exact as it was
    given. Without scripts the zone is UTC. The label says it (`in_zone`)."""

    def __init__(self, **named: Any) -> None:
        # Without a step, browsers accept no other seconds than those that they are given.
        widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "any"})
        super().__init__(required=False, widget=widget, **named)

    def to_python(self, value: Any) -> datetime | None:
        moment = super().to_python(value)
        if moment and not in_all_zones(moment):
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid")
        return moment and moment.astimezone(UTC)

    def prepare_value(self, value: Any) -> Any:
        """Format a time for the browser's field, which accepts no time zone. A text that is no time
        stays as it was typed."""
        try:
            moment = self.to_python(value)
        except forms.ValidationError:
            return value
        return moment and f"{timezone.localtime(moment):%Y-%m-%dT%H:%M:%S}".removesuffix(":00")


class FilterForm(forms.Form):
    """The fields have the API's names for the filters. The form is always usable: a field that
    cannot be read shows an error and is left out."""

    since = MomentField(label=in_zone("Since"))
    until = MomentField(label=in_zone("Until"))

    @property
    def chosen(self) -> dict[str, str]:
        """The filters for the API, once the form is validated."""
        chosen = {name: value for name, value in self.cleaned_data.items() if value}
        return {n: stamp(v) if isinstance(v, datetime) else v for n, v in chosen.items()}

    def offer(self, name: str, choices: Iterable[tuple[str, str]]) -> None:
        offer(self, name, [ANY, *choices])

    @property
    def is_in_use(self) -> bool:
        return any(self.data.get(name) for name in self.fields)

    @property
    def query(self) -> str:
        """The query that leads to the same list again; "" if nothing is chosen."""
        return urlencode(self.chosen)


AT = "at"
# Seconds, and the words for them.
LIFETIMES = {
    "3600": "In 1 hour",
    "86400": "In 1 day",
    "604800": "In 7 days",
    "2592000": "In 30 days",
}


class LifetimeFields(forms.Form):
    """When something expires. The time field is shown if “At a specific time…” is chosen."""

    lifetime = OpenChoiceField(label="Expires", required=False)
    until = MomentField(label=in_zone("Time"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", "Never"), *LIFETIMES.items(), (AT, "At a specific time…")]
        offer(self, "lifetime", choices)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        lifetime = cleaned.get("lifetime", "")
        if lifetime == AT and not cleaned.get("until") and "until" not in self.errors:
            self.add_error("until", "Enter a time.")
        if lifetime not in ("", AT, *LIFETIMES):
            self.add_error("lifetime", "Invalid choice.")
        if lifetime != AT:
            # The time was typed, but another choice made: it is not used, so its errors are not
            # shown.
            self.errors.pop("until", None)
        return cleaned

    @property
    def expires_at(self) -> datetime | None:
        """When it will expire, once the form is validated; None for never."""
        lifetime: str = self.cleaned_data["lifetime"]
        if lifetime == AT:
            until: datetime | None = self.cleaned_data.get("until")
            return until
        return datetime.now(UTC) + timedelta(seconds=int(lifetime)) if lifetime else None

    @staticmethod
    def initial_of(expires_at: datetime | None) -> dict[str, Any]:
        if not expires_at:
            return {}
        return {"lifetime": AT, "until": expires_at.replace(microsecond=0)}
