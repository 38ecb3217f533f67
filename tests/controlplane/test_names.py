"""Generated identifiers."""

import re

from controlplane.models.names import FIRST, SECOND, new_endpoint_id


def test_an_id_is_two_words_and_digits() -> None:
    assert re.fullmatch(r"ep-[a-z]+-[a-z]+-\d{6}", new_endpoint_id())


def test_there_are_many_words_and_none_twice() -> None:
    words = [*FIRST, *SECOND]
    assert len(FIRST) * len(SECOND) > 10_000
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]{2,12}", word) for word in words)
