"""`manage.py events`: what an operator sees, for all accounts."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account


def printed(*arguments: str) -> list[str]:
    output = io.StringIO()
    call_command("events", *arguments, stdout=output)
    return output.getvalue().splitlines()


@pytest.fixture(autouse=True)
def three(account: Account) -> None:
    kind = EventType.API_KEY_CREATED
    record(
        happened(kind, summary="first", account_id=account.id),
        happened(kind, summary="second", account_id=account.id),
        happened(EventType.API_KEY_REFUSED, summary="third", account_id=None),
    )


def test_it_works() -> None:
    lines = printed()
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        *("first (platform)", "second (platform)", "third (platform)")
    ]
    assert "  alice  api_key.created  " in lines[0]
    assert "  -  api_key.refused  " in lines[2]


def test_filters() -> None:
    assert len(printed("--account", "alice")) == 2
    assert len(printed("--account", "")) == 1
    assert len(printed("--type", "api_key.*", "--limit", "2")) == 2
    (line,) = printed("--limit", "1", "--json")
    assert json.loads(line)["account"] is None
    assert json.loads(line)["summary"] == "third"


@pytest.mark.parametrize("arguments", [("--account", "bob"), ("--type", "nest.built")])
def test_unknown_accounts_and_projects(arguments: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=r"there is no|unknown type"):
        printed(*arguments)
