"""Makes the bodies of the API requests that the console's forms send, by the table in
`request_table`."""

from collections.abc import Mapping
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.utils.timezone import make_aware

from console.api.fields import stamp
from console.forms.fields import LifetimeFields, ScaledField
from console.forms.request_table import BODIES, Body


def body_of(form: forms.Form, url_name: str, **known: Any) -> dict[str, Any]:
    """Return the body of the valid form's request. The `known` values take the place of fields'."""
    return fill(BODIES[url_name], form, known)


def fill(shape: Body, form: forms.Form, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with each value in its place."""
    names = {*shape.fields, *shape.ticked}
    values = {**{name: _value(form, name, shape) for name in names}, **known}
    body: dict[str, Any] = deepcopy(dict(shape.always))
    placed = [(place, values[name]) for name, place in shape.fields.items()]
    placed += [more for name, more in shape.ticked.items() if values[name]]
    for place, value in placed:
        if value is None:
            continue
        *outer, last = place.split(".")
        inner = body
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return body


def _value(form: forms.Form, name: str, shape: Body) -> Any:
    """Return the field's value for JSON; None for what is empty or is not sent."""
    if name == "lifetime" and isinstance(form, LifetimeFields):
        return stamp(form.expires_at) if form.expires_at else None
    if name not in form.fields or (shape.is_partial and name not in form.changed_data):
        return None
    value, kind = form.cleaned_data[name], form.fields[name]
    if isinstance(kind, forms.BooleanField):
        return value or (False if shape.is_partial or shape.sends_false else None)
    if isinstance(value, dict):
        return value
    if value in (None, "", []):
        return None
    if isinstance(kind, ScaledField):
        return round(value * kind.scale)
    if isinstance(value, date):
        return _end_of_day(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value if isinstance(value, int | list) else str(value)


def _end_of_day(day: date) -> str:
    """Return the end of the day in the reader's zone."""
    return stamp(make_aware(datetime.combine(day + timedelta(days=1), time())))
