"""Makes the bodies of the API requests that the console's forms send.

Views send the body that the table in `request_table` makes of a form. `request_examples` shows the
same request for curl and neonctl, and `static/commands/command_line.js` keeps it up to date while
the form is filled in.
"""

from collections.abc import Mapping
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.utils.timezone import make_aware

from console.api.fields import stamp
from console.forms.fields import LifetimeFields, LinesField, ScaledField, split_lines
from console.forms.request_table import SENT, Sent


def body_of(form: forms.Form, url_name: str, **known: Any) -> dict[str, Any]:
    """Return the body of the form's request. The `known` values take the place of fields'."""
    sent = SENT[url_name]
    return fill_body(sent, {**field_values(form, sent), **known}, sent.always)


def field_values(form: forms.Form, sent: Sent) -> dict[str, Any]:
    """Return the fields' present values for JSON; None for what is empty or is not sent."""
    names = {*sent.fields, *sent.options, *sent.ticked, *sent.flags}
    return {name: _value(form, name, sent) for name in names}


def fill_body(sent: Sent, values: Mapping[str, Any], always: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with each value in its place."""
    body: dict[str, Any] = deepcopy(dict(always))
    placed = [(place, values[name]) for name, place in sent.fields.items()]
    placed += [more for name, more in sent.ticked.items() if values[name]]
    for place, value in placed:
        if value is None:
            continue
        *outer, last = place.split(".")
        inner = body
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return body


def _value(form: forms.Form, name: str, sent: Sent) -> Any:
    if name == "lifetime" and isinstance(form, LifetimeFields):
        end = form.filled_in_end()
        return stamp(end) if end else None
    if name not in form.fields:
        return None
    value, kind = form[name].value(), form.fields[name]
    changes = sent.method == "PATCH"
    if _offers_one(kind) and not (form.is_bound or value):
        # Browsers choose the first option.
        offered: Any = kind.choices  # type: ignore[attr-defined]
        value = next((key for key, _ in offered), "")
    elif changes and not (sent.is_whole or (form.is_bound and name in form.changed_data)):
        return None
    if form.is_bound and not form.errors:
        value = form.cleaned_data[name]
    if name == "pg_settings":
        if isinstance(value, dict):
            return value
        return {key: setting for key, _, setting in split_lines(str(value))}
    if isinstance(kind, forms.BooleanField):
        return bool(value) if value or changes else None
    if value in (None, "", []):
        return None
    return _for_json(kind, value)


def _offers_one(kind: forms.Field) -> bool:
    return isinstance(kind, forms.ChoiceField) and not isinstance(kind, forms.MultipleChoiceField)


def _for_json(kind: forms.Field, value: Any) -> Any:
    """Return a value that is not empty, typed or validated; None if it is invalid."""
    try:
        if isinstance(kind, LinesField):
            return kind.to_python(value) or None
        if isinstance(kind, ScaledField):
            return round(float(value) * kind.scale)
        if isinstance(kind, forms.DateField):
            return _end_of_day(kind.to_python(value))
        if isinstance(kind, forms.IntegerField | forms.FloatField):
            number = float(value)
            return int(number) if number.is_integer() else number
    except (forms.ValidationError, TypeError, ValueError, OverflowError):
        return None
    return value if isinstance(value, list) else str(value)


def _end_of_day(day: date | None) -> str | None:
    """Return the end of the day in the reader's zone."""
    if day is None:
        return None
    return stamp(make_aware(datetime.combine(day + timedelta(days=1), time())))
