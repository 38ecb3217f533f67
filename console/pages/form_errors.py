"""Shows what the API refused beside the form's fields at fault."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from django import forms

from console.api.errors import APIError, Unauthorized
from console.forms.fields import FIELDS_OF_ATTRIBUTES, WORDS_OF_ATTRIBUTES
from console.pages.problems import sentence, spell_out, words_beside


@contextmanager
def problems_beside(form: forms.Form, field: str = "") -> Generator[None]:
    """Turn an `APIError` into an error of the form; of `field`, if that one is the cause."""
    try:
        yield
    except Unauthorized as problem:
        form.add_error(None, forms.ValidationError(words_beside(problem)))
    except APIError as problem:
        for at_fault, words in _find_faults(form, field, problem):
            form.add_error(at_fault, forms.ValidationError(words))


# How the API words values that it cannot accept:
# “… invalid: endpoint.branch_id (field required); endpoint.name (…)”.
INVALID = re.compile(r"(?P<path>[\w.]+) \((?P<why>.*?)\)(?:; |$)", re.DOTALL)

# “branch already exists; branch_name:"dev"”.
TAKEN = re.compile(r'(?P<kind>\w+) already exists; \w+_name:"(?P<name>[^"]*)"', re.IGNORECASE)

# How it words an error of one value within a field: “settings.pg_settings.work_mem: must be …”.
NAMED = re.compile(r"(?P<path>\w+(?:\.[\w$]+)+): (?P<why>.*)", re.DOTALL)


def _find_faults(form: forms.Form, field: str, problem: APIError) -> list[tuple[str | None, str]]:
    """Return the fields at fault, None for the whole form, each with what to say about it."""
    _, invalid, complaints = problem.message.partition("invalid: ")
    found: list[tuple[str | None, str]] = []
    for complaint in INVALID.finditer(complaints if invalid else ""):
        for part in reversed(complaint["path"].split(".")):
            name = FIELDS_OF_ATTRIBUTES.get(part, part)
            if name in form.fields:
                found.append((name, f"{sentence(complaint['why'])}."))
                break
    if found:
        return [(at_fault, _in_labels(form, words)) for at_fault, words in found]
    if taken := TAKEN.search(problem.message):
        words = f"There is a {taken['kind'].lower()} called “{taken['name']}” already."
        return [("name" if "name" in form.fields else field, words)]
    is_its_fault = problem.page_status in (400, 409, 422)
    if is_its_fault and (value := _value_at_fault(form, problem.message)):
        return [value]
    named = next((name for _, name in _attributes(form, problem.message)), field)
    at_fault = named if is_its_fault and named in form.fields else None
    return [(at_fault, _in_labels(form, spell_out(problem)))]


def _value_at_fault(form: forms.Form, words: str) -> tuple[str, str] | None:
    """Return the field at fault for one value within it, and what to say about the value."""
    named = NAMED.fullmatch(words)
    parts = named["path"].split(".") if named else []
    for place, part in enumerate(parts):
        if named and part in form.fields:
            rest = ".".join(parts[place + 1 :])
            return part, f"{rest}: {named['why']}." if rest else named["why"]
    return None


# How the API writes the names of its attributes: words in lower case, joined by underscores.
ATTRIBUTE = re.compile(r"\b[A-Za-z]+(?:_[a-z]+)+\b")


def _attributes(form: forms.Form, words: str) -> list[tuple[str, str]]:
    """Return the attributes that the words name, each with the form's field for it."""
    written = ATTRIBUTE.findall(words)
    fields = [(name, FIELDS_OF_ATTRIBUTES.get(name.lower(), name.lower())) for name in written]
    return [(attribute, name) for attribute, name in fields if name in form.fields]


def in_plain_words(words: str) -> str:
    """Replace the API's names of attributes by words, if no field of a form has a label for it."""
    return ATTRIBUTE.sub(lambda name: WORDS_OF_ATTRIBUTES.get(name[0], name[0]), words)


def _in_labels(form: forms.Form, words: str) -> str:
    """Replace the API's names of attributes by the labels of the form's fields."""
    for attribute, name in _attributes(form, words):
        words = words.replace(attribute, f"“{form[name].label}”")
    return in_plain_words(words)
