"""The forms that filter a list. They are sent by GET, so that the address holds the filters."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.utils import timezone

from console.actors import actor_choices
from console.api_results import Branch, Endpoint, stamp
from console.event_words import type_choices
from console.forms import OpenChoiceField, offer
from console.statuses import ACTIONS, OPERATION_STATUSES

ANY = ("", "Any")


class MomentField(forms.DateTimeField):
    """A time in UTC, to the minute as browsers ask for it, or as exact as it was given.

    The time typed is in UTC, whatever zone the pages use for times; the label says so.
    """

    def __init__(self, **named: Any) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local"})
        super().__init__(required=False, widget=widget, **named)

    def to_python(self, value: Any) -> datetime | None:
        with timezone.override(UTC):
            moment = super().to_python(value)
        try:
            return moment and moment.astimezone(UTC)
        except OverflowError as error:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error

    def prepare_value(self, value: Any) -> Any:
        """Format a time for the browser's field, which accepts no time zone.

        A text that is no time stays as it was typed.
        """
        try:
            moment = self.to_python(value)
        except forms.ValidationError:
            return value
        return moment and moment.strftime("%Y-%m-%dT%H:%M:%S").removesuffix(":00")


class FilterForm(forms.Form):
    """The fields have the API's names for the filters. The form is always usable: a field that
    cannot be read shows an error and is left out."""

    since = MomentField(label="Since (UTC)")
    until = MomentField(label="Until (UTC)")

    @property
    def chosen(self) -> dict[str, str]:
        """The filters for the API, once the form is validated."""
        return {name: _words(value) for name, value in self.cleaned_data.items() if value}

    def offer(self, name: str, choices: Iterable[tuple[str, str]]) -> None:
        offer(self, name, [ANY, *choices])

    @property
    def is_in_use(self) -> bool:
        return any(self.data.get(name) for name in self.fields)

    @property
    def query(self) -> str:
        """The query that leads to the same list again; "" if nothing is chosen."""
        return urlencode(self.chosen)


def _words(value: str | datetime) -> str:
    if isinstance(value, datetime):
        return stamp(value)
    return value


class OperationFilters(FilterForm):
    action = OpenChoiceField(required=False)
    status = OpenChoiceField(required=False)
    endpoint_id = OpenChoiceField(label="Endpoint", required=False)
    branch_id = OpenChoiceField(label="Branch", required=False)
    initiator = OpenChoiceField(label="Begun by", required=False)
    field_order = ("action", "status", "endpoint_id", "branch_id", "initiator", "since", "until")

    def offer_all(self, branches: Iterable[Branch], endpoints: Iterable[Endpoint]) -> None:
        self.offer("action", ((value, name) for value, (name, _) in ACTIONS.items()))
        self.offer("status", _statuses())
        self.offer("endpoint_id", ((one.id, one.id) for one in endpoints))
        self.offer("branch_id", ((one.id, one.name) for one in branches))
        self.offer("initiator", actor_choices())


def _statuses() -> list[tuple[str, str]]:
    """Return the choices: two that combine statuses by commas, and then each status."""
    own = [status for status in OPERATION_STATUSES.values() if not status.is_foreign]
    unfinished = ",".join(status.value for status in own if not status.terminal)
    return [
        (unfinished, "Unfinished"),
        ("failed,cancelled", "Error or cancelled"),
        *((status.value, status.label) for status in own),
    ]


class EventFilters(FilterForm):
    type = OpenChoiceField(required=False)
    actor = OpenChoiceField(label="By", required=False)
    endpoint_id = OpenChoiceField(label="Endpoint", required=False)
    branch_id = OpenChoiceField(label="Branch", required=False)
    field_order = ("type", "actor", "endpoint_id", "branch_id", "since", "until")

    def offer_all(
        self, branches: Iterable[Branch] | None = None, endpoints: Iterable[Endpoint] | None = None
    ) -> None:
        """Offer the choices. For a whole account, branches and endpoints are too many to offer."""
        self._offer_or_drop("endpoint_id", [(one.id, one.id) for one in endpoints or ()])
        self._offer_or_drop("branch_id", [(one.id, one.name) for one in branches or ()])
        self.offer("actor", actor_choices())
        groups = type_choices()
        known = [value for _, choices in groups for value, _ in choices]
        chosen = self.data.get("type", "")
        kept = [(chosen, chosen)] if chosen and chosen not in known else []
        cast(forms.ChoiceField, self.fields["type"]).choices = [ANY, *kept, *groups]

    def _offer_or_drop(self, name: str, choices: Sequence[tuple[str, str]]) -> None:
        if choices or self.data.get(name):
            self.offer(name, choices)
        else:
            del self.fields[name]
