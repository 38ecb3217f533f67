"""Commands of `manage.py`: `hosts`, `events`, `metrics`, `migrate`, and Postgres's programs."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.commands import migrate as django_migrate
from django.db import OperationalError
from django.utils import timezone
from psycopg.errors import DeadlockDetected, DiskFull, LockNotAvailable

from controlplane import clock
from controlplane.compute.data.state_directory import identity
from controlplane.deployment import host_figures
from controlplane.deployment.host_figures import HostFigures
from controlplane.deployment.postgres_programs import Way, environment_for
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.management.commands import migrate
from controlplane.management.commands.metrics import address_text, parsed
from controlplane.management.commands.pg_restore import Command as PgRestore
from controlplane.models import Account, Endpoint, Host, Project, Region
from controlplane.models.host import AWAY_AFTER
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_host, make_project
from tests.support.stack import ROOT

GB = 1 << 30


def hosts(*arguments: str) -> str:
    out = io.StringIO()
    call_command("hosts", *arguments, stdout=out)
    return out.getvalue()


def leave(host: Host) -> None:
    """Make the host's worker silent for long enough."""
    Host.objects.filter(id=host.id).update(worker_seen_at=timezone.now() - AWAY_AFTER)


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


def test_a_command_whose_output_nobody_reads_any_more_ends_silently() -> None:
    begins = f"""
import os, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.argv = ["manage.py", "--help"]
sys.path.insert(0, {str(ROOT)!r})
import manage
manage.main()
"""
    ended = subprocess.run([sys.executable, "-c", begins], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_hosts_are_listed(host: Host, project: Project) -> None:
    make_host(
        "two", "local", cpus=8, cpu_load=0.25, disk_free_bytes=3 * GB, version="9.9", draining=True
    )
    start_for_client(Endpoint.objects.get().id)
    heading, one, two = hosts().splitlines()
    words = "host region address worker seen proxy seen version load disk free projects active jobs"
    assert heading.split() == words.split()
    assert one.split()[:2] == ["local", "local"]
    assert one.split()[-3:] == ["1", "0", "1"]
    assert two.split()[:2] == ["two", "local"]
    seen = "0 s ago never 9.9 0.2 of 8 3.22 GB 0 0 0 draining"
    assert two.split()[3:] == seen.split()


def test_a_draining_host_without_others_keeps_its_projects(host: Host, project: Project) -> None:
    said = hosts("drain", "local")
    assert "local gets no new projects. Projects that are being moved: 0." in said
    assert f"{project.id} stays: the region has no other host." in said
    assert Host.objects.get().draining
    assert start_for_client(Endpoint.objects.get().id)
    assert hosts("resume", "local") == "local gets new projects again.\n"
    assert not Host.objects.get().draining


def test_only_an_empty_host_whose_worker_is_stopped_is_removed(
    host: Host, project: Project
) -> None:
    two = make_host("two", "local")
    with pytest.raises(CommandError, match="the worker of two still runs"):
        hosts("remove", "two")
    start_for_client(Endpoint.objects.get().id)
    for left in (host, two):
        leave(left)
    with pytest.raises(CommandError, match="1 project, 1 unfinished operation"):
        hosts("remove", "local")
    assert hosts("remove", "two") == "two is removed.\n"
    hosts("remove", "local", "--force")
    counts = [row.objects.count() for row in (Host, Project, Region)]
    assert counts == [0, 0, 1]


def test_another_state_directory_takes_the_place_of_a_lost_one(
    host: Host, tmp_path: Any, settings: Any
) -> None:
    Host.objects.update(state_id="lost")
    settings.STATE_DIR = tmp_path
    with pytest.raises(CommandError, match="the worker of local still runs"):
        hosts("adopt", "local")
    leave(host)
    assert hosts("adopt", "local") == f"local is served from {tmp_path} now.\n"
    assert Host.objects.get().state_id == identity()


def printed(*arguments: str) -> list[str]:
    output = io.StringIO()
    call_command("events", *arguments, stdout=output)
    return output.getvalue().splitlines()


@pytest.fixture
def three_events(account: Account) -> None:
    kind = EventType.API_KEY_CREATED
    record(
        happened(kind, summary="first", account_id=account.id),
        happened(kind, summary="second", account_id=account.id),
        happened(EventType.API_KEY_REFUSED, summary="third", account_id=None),
    )


@pytest.mark.usefixtures("three_events")
def test_events_are_printed() -> None:
    lines = printed()
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        *("first (platform)", "second (platform)", "third (platform)")
    ]
    assert "  alice  api_key.created  " in lines[0]
    assert "  -  api_key.refused  " in lines[2]


@pytest.mark.usefixtures("three_events")
def test_events_are_filtered() -> None:
    assert len(printed("--account", "alice")) == 2
    assert len(printed("--account", "")) == 1
    assert len(printed("--type", "api_key.*", "--limit", "2")) == 2
    (line,) = printed("--limit", "1", "--json")
    assert json.loads(line)["account"] is None
    assert json.loads(line)["summary"] == "third"


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("arguments", [("--account", "bob"), ("--type", "nest.built")])
def test_unknown_accounts_and_types_of_events(arguments: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=r"there is no|unknown type"):
        printed(*arguments)


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:9464", "127.0.0.1", 9464), ("[::1]:80", "::1", 80), ("metrics:1", "metrics", 1)],
)
def test_the_address_of_the_metrics_is_read(listen: str, host: str, port: int) -> None:
    assert parsed(listen) == (host, port)
    assert address_text(host, port) == listen


@pytest.mark.parametrize("listen", ["9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x"])
def test_what_is_no_address_of_metrics_is_an_error(listen: str) -> None:
    with pytest.raises(CommandError, match="PERCH_METRICS_LISTEN must be an address and a port"):
        parsed(listen)


def test_the_proxys_problems_are_figures_too(
    host: Host, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HOST_NAME = host.id
    monkeypatch.setattr(host_figures, "is_identity", lambda _: True)
    # It would close the connection with the test's transaction.
    monkeypatch.setattr(host_figures, "close_old_connections", lambda: None)
    host.worker_seen_at = host.proxy_seen_at = clock.now()
    host.problems = [{"name": "disk_nearly_full", "detail": "1 GB is left"}]
    host.proxy_problems = [{"name": "certificate_ends", "detail": "it is valid until tomorrow"}]
    host.save()
    samples = [one for metric in HostFigures(tmp_path).collect() for one in metric.samples]
    found = {one.labels["name"] for one in samples if one.name == "perch_problem"}
    assert found == {"disk_nearly_full", "certificate_ends"}


WAY = Way("127.0.0.1", 6432, "ep-a-b-1", "ann", "shop", "p:w\\d", 18)


def test_the_password_file_is_for_this_host_and_role_only() -> None:
    environment = environment_for(WAY, {"PGUSER": "bob", "PGPASSWORD": "x", "LANG": "C"})
    file = Path(environment.pop("PGPASSFILE"))
    assert file.read_text() == "127.0.0.1:6432:*:ann:p\\:w\\\\d\n"
    assert file.stat().st_mode & 0o777 == 0o600
    os.close(int(file.name))
    assert environment == {
        "PGHOST": "127.0.0.1",
        "PGPORT": "6432",
        "PGUSER": "ann",
        "PGDATABASE": "shop",
        "PGOPTIONS": "endpoint=ep-a-b-1",
        "LANG": "C",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], ["--dbname=shop"]),
        (["-Fc", "--clean", "birds.dump"], ["--dbname=shop"]),
        (["-dother"], []),
        (["--file=-", "birds.dump"], []),
        (["-l"], []),
        (["--help"], []),
    ],
)
def test_pg_restore_restores_by_default(arguments: list[str], told: list[str]) -> None:
    assert list(PgRestore().extra_arguments(WAY, arguments)) == told


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the next attempts of a migration end with; after them, one succeeds."""
    ends: list[Exception] = []

    def handle(*_: Any, **__: Any) -> None:
        if ends:
            raise OperationalError from ends.pop(0)

    monkeypatch.setattr(django_migrate.Command, "handle", handle)
    monkeypatch.setattr(migrate, "RETRY_DELAY", 0)
    return ends


def test_a_migration_that_others_were_in_the_way_of_begins_again(attempts: list[Exception]) -> None:
    attempts += [LockNotAvailable(), DeadlockDetected(), LockNotAvailable()]
    call_command("migrate")
    assert not attempts


def test_another_failure_of_a_migration_is_raised(attempts: list[Exception]) -> None:
    attempts += [DiskFull(), DiskFull()]
    with pytest.raises(OperationalError):
        call_command("migrate")
    assert len(attempts) == 1
