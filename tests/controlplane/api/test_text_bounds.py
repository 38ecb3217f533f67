"""Checking a long text, or many of them, takes few steps of Python, which all requests share."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from controlplane.address_ranges import parse_range
from controlplane.api.http.fields import TextMap, storable
from controlplane.api.requests.projects import AllowedIps


def calls_of(work: Callable[[], object]) -> int:
    """Return how often Python entered or left a function."""
    count = 0

    def note(*event: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_long_text_is_not_checked_letter_by_letter() -> None:
    assert calls_of(lambda: storable("v" * 100_000)) < 100


@pytest.mark.parametrize("odd", [*map(chr, range(32)), "\x7f", "\u202a", "\u2069", "\ud800"])
def test_no_odd_letter_passes(odd: str) -> None:
    for text in (odd, f"a{odd}", f"{odd}b", f"a{odd}b"):
        with pytest.raises(ValueError, match=r"not allowed|not valid UTF-8"):
            storable(text)


@pytest.mark.parametrize("text", ["", "a", "~", "\x80", "é", "\u2029\u202f\u2065\u206a", "😀"])
def test_other_letters_pass(text: str) -> None:
    assert storable(text) == text


@pytest.mark.parametrize("text", ["1" * 960_000, "1-" * 480_000, "1.1.1.1/" + "1" * 900_000])
def test_a_long_range_of_addresses_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of addresses") as refused:
        parse_range(text)
    assert len(str(refused.value)) < 400
    with pytest.raises(ValidationError) as invalid:
        AllowedIps.model_validate({"ips": [text]})
    assert len(invalid.value.errors()[0]["msg"]) < 400


@pytest.mark.parametrize("value", ["\n", 5])
def test_a_map_with_too_many_entries_is_refused_once(value: Any) -> None:
    many = {f"setting_{i}": value for i in range(9_000)}
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(TextMap).validate_python(many)
    assert refused.value.error_count() == 1
