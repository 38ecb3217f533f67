"""Generated identifiers."""

from collections.abc import Iterator

import coolname
import pytest

from controlplane.models.names import new_webhook_id


def test_no_word_could_be_taken_for_a_remark_about_people(monkeypatch: pytest.MonkeyPatch) -> None:
    generated: Iterator[list[str]] = iter([["gay", "donkey"], ["calm", "rat"], ["calm", "heron"]])
    monkeypatch.setattr(coolname, "generate", lambda _: next(generated))
    assert new_webhook_id().startswith("wh-calm-heron-")
