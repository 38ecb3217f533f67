"""`manage.py hosts add` and `hosts join`: a new machine becomes a host by one line."""

import io
import os
import shlex
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.management import CommandError, call_command
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.models import Host, HostInvitation
from tests.controlplane.rows import make_host

KEY = "the secret key of the service"
API = "https://api.example.com"


@pytest.fixture
def inviting(
    host: Host, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, client: DjangoClient
) -> Path:
    """The state directory of the host that invites. Requests to API reach the API's own code."""
    place = tmp_path / "service"
    (place / "tls").mkdir(parents=True)
    for name in ("authority.pem", "authority.key"):
        (place / "tls" / name).write_text(f"the {name}\n")
    settings.STATE_DIR, settings.SECRET_KEY = place, KEY
    monkeypatch.setenv("DATABASE_URL", "postgresql://perch:hidden@db.example.com/perch")
    monkeypatch.setenv("PERCH_HISTORY_STORE", "s3://bucket")

    def post(url: str, json: Any, timeout: float) -> Any:
        answer = client.post(url.removeprefix(API), json, content_type="application/json")
        answer.ok = answer.status_code < 400  # type: ignore[attr-defined]
        return answer

    monkeypatch.setattr(requests, "post", post)
    return place


@pytest.fixture
def new(tmp_path: Path, settings: Any) -> Path:
    """The state directory of the new machine. The accounts of computes must be able to enter it."""
    for place in (tmp_path, *tmp_path.parents):
        if place != Path("/") and place.stat().st_uid == os.geteuid():
            place.chmod(place.stat().st_mode | 0o011)
    return tmp_path / "new"


def hosts(*arguments: str) -> str:
    out = io.StringIO()
    call_command("hosts", *arguments, stdout=out)
    return out.getvalue()


def add(name: str = "two") -> list[str]:
    """Return the arguments of `hosts` in the line that `hosts add` prints."""
    line = hosts("add", name, "--address", "two.example.com", "--api", API).splitlines()[0]
    words = shlex.split(line)
    assert words[:3] == ["perch", "hosts", "join"]
    return words[2:]


def test_one_line_brings_a_new_machine_all_it_needs(
    inviting: Path, new: Path, settings: Any
) -> None:
    line = add()
    (row,) = HostInvitation.objects.all()
    for secret in (KEY, "hidden"):
        assert secret not in " ".join(line)
        assert secret not in row.content
    settings.STATE_DIR = new
    said = hosts(*line)
    assert f"{new} is the state directory of the host two" in said
    assert KEY not in said
    assert (new / "secret-key").read_text() == KEY
    assert (new / "tls" / "authority.key").read_text() == "the authority.key\n"
    variables = (new / "environment").read_text().splitlines()
    assert set(variables) == {
        "DATABASE_URL=postgresql://perch:hidden@db.example.com/perch",
        "PERCH_HISTORY_STORE=s3://bucket",
        "PERCH_REGION=local",
        "PERCH_REGION_HOST=localhost",
        "PERCH_REGION_PORT=5432",
        "PERCH_HOST_NAME=two",
        "PERCH_HOST_ADDRESS=two.example.com",
    }
    for name in ("secret-key", "tls/authority.key", "environment"):
        assert stat.S_IMODE((new / name).stat().st_mode) == 0o600


def test_the_operators_certificate_is_brought(
    inviting: Path, new: Path, settings: Any, tmp_path: Path
) -> None:
    for name, variable in (("certificate", "TLS_CERTIFICATE"), ("key", "TLS_KEY")):
        (tmp_path / name).write_text(f"the {name}\n")
        setattr(settings, variable, str(tmp_path / name))
    line = add()
    settings.STATE_DIR = new
    hosts(*line)
    assert (new / "tls" / "certificate.key").read_text() == "the key\n"
    assert not (new / "tls" / "authority.key").exists()
    assert f"PERCH_TLS_KEY={new}/tls/certificate.key" in (new / "environment").read_text()


def test_no_host_is_added_whose_name_is_too_long(inviting: Path) -> None:
    with pytest.raises(CommandError, match="is too long"):
        add("ip-10-0-0-12.eu-central-1.compute.internal")
    assert not HostInvitation.objects.exists()


def test_a_token_is_good_once(inviting: Path, new: Path, settings: Any) -> None:
    line = add()
    settings.STATE_DIR = new
    hosts(*line)
    settings.STATE_DIR = new.with_name("another")
    with pytest.raises(CommandError, match="there is no such invitation, or it was used"):
        hosts(*line)
    assert not settings.STATE_DIR.exists()


def test_a_token_expires(inviting: Path, new: Path, settings: Any) -> None:
    line = add()
    HostInvitation.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    settings.STATE_DIR = new
    with pytest.raises(CommandError, match="or it has expired"):
        hosts(*line)
    HostInvitation.objects.create(digest="old", content="", expires_at=clock.now())
    settings.STATE_DIR = inviting
    add()
    assert HostInvitation.objects.count() == 1


def test_what_is_not_a_token(inviting: Path, new: Path, settings: Any) -> None:
    token = add()[1]
    settings.STATE_DIR = new
    for wrong in ("nonsense", token[:-4], "perchjoin_ä"):
        with pytest.raises(CommandError, match="is not a token that `hosts add` has printed"):
            hosts("join", wrong, "--api", API)
    other_key = token[:-8] + "AAAAAAAA"
    with pytest.raises(CommandError, match="is not the invitation of this token"):
        hosts("join", other_key, "--api", API)


def test_a_directory_that_has_something_is_left_alone(inviting: Path, settings: Any) -> None:
    line = add()
    with pytest.raises(CommandError, match="is not empty"):
        hosts(*line)
    assert HostInvitation.objects.exists()


def test_what_cannot_be_added(inviting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host("two", "local")
    with pytest.raises(CommandError, match='there is a host "two" already'):
        add("two")
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(CommandError, match="a Postgres of its own, which no other machine can"):
        add("three")


@pytest.mark.parametrize(
    "body", ["", "{}", "[]", "[" * 100_000, '{"invitation": ' * 5_000, r'{"invitation": "\ud800"}']
)
def test_what_is_not_the_name_of_an_invitation(
    inviting: Path, client: DjangoClient, body: str
) -> None:
    answer = client.post("/hosts/join", body, content_type="application/json")
    assert answer.status_code == 400
