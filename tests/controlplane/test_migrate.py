"""`manage.py migrate` while others use the database."""

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.commands import migrate as django_migrate
from django.db import OperationalError
from psycopg.errors import DeadlockDetected, DiskFull, LockNotAvailable

from controlplane.management.commands import migrate


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the next attempts of a migration end with; after them, one succeeds."""
    ends: list[Exception] = []

    def handle(*_: Any, **__: Any) -> None:
        if ends:
            raise OperationalError from ends.pop(0)

    monkeypatch.setattr(django_migrate.Command, "handle", handle)
    monkeypatch.setattr(migrate, "PAUSE", 0)
    return ends


def test_a_migration_that_others_were_in_the_way_of_begins_again(
    attempts: list[Exception],
) -> None:
    attempts += [LockNotAvailable(), DeadlockDetected(), LockNotAvailable()]
    call_command("migrate")
    assert not attempts


def test_another_failure_is_raised(attempts: list[Exception]) -> None:
    attempts += [DiskFull(), DiskFull()]
    with pytest.raises(OperationalError):
        call_command("migrate")
    assert len(attempts) == 1
