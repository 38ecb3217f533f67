"""Shows what the API refused beside the form's fields at fault."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

from django import forms
from django.utils.timezone import localtime

from console.api.errors import APIError, RequestShown, Unauthorized
from console.forms.fields import WORDS_OF_ATTRIBUTES
from console.forms.request_table import FIELDS_OF_ATTRIBUTES
from console.pages.problems import quoted, sentence, spell_out, words_beside


@contextmanager
def problems_beside(form: forms.Form, field: str = "") -> Generator[None]:
    """Turn an `APIError` into an error of the form; of `field`, if that one is the cause. A request
    that is only to be shown is no error."""
    try:
        yield
    except RequestShown:
        pass
    except Unauthorized as problem:
        form.add_error(None, forms.ValidationError(words_beside(problem)))
    except APIError as problem:
        for at_fault, words in _find_faults(form, field, problem):
            form.add_error(at_fault, forms.ValidationError(words))


def _find_faults(form: forms.Form, field: str, problem: APIError) -> list[tuple[str | None, str]]:
    """Return the fields at fault, None for the whole form, each with what to say about it.

    `field` is at fault if the API names a field that the form does not have.
    """
    if problem.page_status not in (400, 409, 422):
        return [(None, _in_labels(form, spell_out(problem)))]
    found: dict[str, str] = {}
    for error in problem.fields:
        name, value = _field_of(form, error.field)
        words = f"{value}: {error.message}." if value else f"{sentence(error.message)}."
        # The same is said of two fields that contradict each other. Show it once.
        if name:
            found.setdefault(words, name)
    if found:
        return [(name, _in_labels(form, quoted(words))) for words, name in found.items()]
    at_fault = field if field in form.fields else None
    return [(at_fault, _in_labels(form, spell_out(problem)))]


def _field_of(form: forms.Form, path: str) -> tuple[str, str]:
    """Return the form's field for a path in the API's body, and the rest of the path, which leads
    to a value within the field. Both are "" if the form has none."""
    parts = path.split(".")
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        name = part if part in form.fields else FIELDS_OF_ATTRIBUTES.get(part, part)
        if name in form.fields:
            return name, _value_at(form, name, ".".join(parts[place + 1 :]))
    return "", ""


def _value_at(form: forms.Form, name: str, path: str) -> str:
    """Return the line that a path in a list leads to, and any other path as it is."""
    lines = getattr(form, "cleaned_data", {}).get(name)
    if isinstance(lines, list) and path.isdecimal() and int(path) < len(lines):
        return str(lines[int(path)])
    return path


# How the API writes the names of its attributes: words in lower case, joined by underscores.
ATTRIBUTE = re.compile(r"\b[A-Za-z]+(?:_[a-z]+)+\b")


# A size of a compute beside its label, of which the API says the number alone.
SIZE = re.compile(r"(“M(?:in|ax)imum size” \d+(?:\.\d+)?)(?! CU)\b(?!\.\d)")


def _attributes(form: forms.Form, words: str) -> list[tuple[str, str]]:
    """Return the attributes that the words name, each with the form's field for it."""
    written = ATTRIBUTE.findall(words)
    fields = [(name, FIELDS_OF_ATTRIBUTES.get(name.lower(), name.lower())) for name in written]
    return [(attribute, name) for attribute, name in fields if name in form.fields]


TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def translate_message(words: str) -> str:
    """Replace the API's names of attributes by words, if no field of a form has a label for it, and
    its times by those in the reader's zone."""
    words = TIME.sub(lambda found: _in_local_time(found[0]), words)
    return ATTRIBUTE.sub(lambda name: WORDS_OF_ATTRIBUTES.get(name[0], name[0]), words)


def _in_local_time(time: str) -> str:
    try:
        return f"{localtime(datetime.fromisoformat(time)):%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError):
        return time


def _in_labels(form: forms.Form, words: str) -> str:
    """Replace the API's names of attributes by the labels of the form's fields."""
    for attribute, name in _attributes(form, words):
        words = words.replace(attribute, f"“{form[name].label}”")
    return translate_message(SIZE.sub(r"\1 CU", words))
