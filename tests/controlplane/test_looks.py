"""A query to a compute that fails in any way affects only that compute's endpoint."""

from typing import Any

import psycopg
import pytest
from django.db import connection

from controlplane.models import Endpoint
from controlplane.operations.looks import LOOKS_AT_ONCE, look_into

ANYTHING = (
    psycopg.OperationalError("gone"),
    psycopg.DataError("can't parse timestamp with DateStyle 'German'"),
    UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"),
    NotImplementedError(),
    KeyError("nobody thought of it"),
    RecursionError(),
    MemoryError(),
)


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
def test_a_failed_query_is_unknown_and_the_others_have_answers(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints = [Endpoint(id=f"ep-{number}") for number in range(3 * LOOKS_AT_ONCE)]
    failing = {endpoint.id for endpoint in endpoints[::2]}

    def look(endpoint_id: str) -> Any:
        if endpoint_id in failing:
            raise error
        return endpoint_id.upper()

    with caplog.at_level("INFO", logger="controlplane.operations.looks"):
        found = {endpoint.id: seen for endpoint, seen in look_into(endpoints, look, at="size")}
    assert found == {e.id: e.id.upper() for e in endpoints if e.id not in failing}
    told = {record.__dict__["endpoint"]: record.__dict__["unknown"] for record in caplog.records}
    assert told == dict.fromkeys(failing, "size")


@pytest.mark.django_db
def test_looks_give_their_connections_back() -> None:
    """Each look runs in a thread of its own, and may read rows."""
    used: list[Any] = []

    def look(_: str) -> None:
        Endpoint.objects.exists()
        used.append(connection.connection)

    assert len(list(look_into([Endpoint(id="ep-1")], look, at="size"))) == 1
    # Django closes a connection, or gives it back to its pool, by letting go of it.
    assert [one.closed for one in used] == [True]
