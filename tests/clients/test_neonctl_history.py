"""Neon's command-line client, unmodified: branches and restores of past moments."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tests.clients.conftest import Cli
from tests.selection import first_of
from tests.support.client import Client
from tests.support.past import notes, with_history, write
from tests.support.place import Place
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def in_milliseconds(at: str) -> str:
    """The time as the client accepts it: with milliseconds, rounded up."""
    rounded = datetime.fromisoformat(at) + timedelta(microseconds=999)
    return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def past(stack: Stack, alice: Client) -> tuple[Place, list[tuple[str, str]]]:
    """A project of its own, and the time and position after each of two commits."""
    place = Place.create(stack, alice)
    with_history(place)
    return place, [
        (in_milliseconds(at), lsn)
        for at, lsn in (write(place, text) for text in ("first", "second"))
    ]


@pytest.mark.parametrize("named_by", first_of(["time", "lsn"]))
def test_a_branch_of_a_past_moment(
    neonctl: Cli, past: tuple[Place, list[tuple[str, str]]], named_by: str
) -> None:
    place, ((at, lsn), _) = past
    # Of the default branch: the client names a moment here without a branch.
    moment = {"time": at, "lsn": lsn}[named_by]
    made = neonctl(
        *("branches", "create", "--project-id", place.id, "--name", "then", "--parent", moment)
    )
    endpoint_id = made["endpoints"][0]["id"]
    wait_for(lambda: place.endpoint(endpoint_id)["current_state"] == "active", "the endpoint")
    rows = place.sql("SELECT text FROM notes", endpoint_id=endpoint_id)
    assert rows == [("first",)]


@pytest.mark.thorough
def test_a_branch_is_restored_from_its_own_past(
    neonctl: Cli, past: tuple[Place, list[tuple[str, str]]]
) -> None:
    place, ((at, _), _) = past
    neonctl.text(
        *("branches", "restore", "main", f"^self@{at}", "--project-id", place.id),
        *("--preserve-under-name", "x"),
    )
    place.settle()
    assert place.query("SELECT array_agg(text) FROM notes") == (["first"],)
    kept = neonctl("branches", "get", "x", "--project-id", place.id)
    assert notes(place, kept["id"]) == ["first", "second"]


@pytest.mark.thorough
def test_a_branchs_schema_is_compared_with_its_past(
    make_cli: Callable[..., Cli], past: tuple[Place, list[tuple[str, str]]]
) -> None:
    place, ((at, lsn), _) = past
    place.sql("ALTER TABLE notes ADD COLUMN added integer")
    for package, named in [
        ("neonctl", [f"main@{at}"]),
        ("neonctl", ["main", f"^self@{lsn}"]),
        ("neonctl-2", ["main", f"main@{at}"]),
    ]:
        cli = make_cli(place.client, package)
        told = cli.text("branches", "schema-diff", *named, "--project-id", place.id)
        assert re.search(r"^\S*-\s+added integer", told, re.MULTILINE), told


@pytest.mark.thorough
def test_a_parent_at_a_moment_is_the_clients_own_error(
    neonctl: Cli, past: tuple[Place, list[tuple[str, str]]]
) -> None:
    """The client takes a moment of the default branch, or a branch, but never both: it sends no
    request for this."""
    place, ((at, _), _) = past
    refused = neonctl.refusal(
        *("branches", "create", "--project-id", place.id, "--name", "never"),
        *("--parent", f"main@{at}"),
    )
    assert f"Branch main@{at} not found" in refused


@pytest.mark.thorough
def test_a_moment_outside_of_the_history_is_refused(
    neonctl: Cli, past: tuple[Place, list[tuple[str, str]]]
) -> None:
    place, _ = past
    refused = neonctl.refusal(
        *("branches", "create", "--project-id", place.id, "--name", "never"),
        *("--parent", "2020-01-01T00:00:00Z"),
    )
    assert "outside of the branch's history" in refused
