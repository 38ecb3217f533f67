"""What `manage.py upgrade_project` refuses before it makes anything, and what it schedules."""

from io import StringIO
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError

from controlplane.models import (
    Account,
    Endpoint,
    EndpointState,
    Host,
    Operation,
    PostgresSettings,
    Project,
)
from controlplane.operations.actions.table import actions, details_of
from controlplane.operations.details import UpgradeProjectDetails
from controlplane.services.errors import Conflict, NotFound, Unprocessable
from controlplane.services.project_changes import cancel_upgrade, upgrade_project
from tests.controlplane.rows import make_project

WORK_MEM = {"vartype": "integer", "unit": "kB", "min": "64", "max": "2147483647"}


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    """A project of Postgres 15, whose host has 15 and 18."""
    Host.objects.filter(id=host.id).update(pg_version=18, pg_versions=[15, 18])
    for major, known in ((15, {"work_mem": WORK_MEM, "promote": WORK_MEM}), (18, {})):
        PostgresSettings.objects.create(
            host=host, major=major, version=f"{major}.1", known=known or {"work_mem": WORK_MEM}
        )
    made = make_project(account, host)
    Project.objects.filter(id=made.id).update(pg_version=15)
    return Project.objects.get(id=made.id)


def test_it_suspends_what_is_active_and_holds_the_project(project: Project) -> None:
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    *suspends, last = upgrade_project(project.id, to=18)
    assert [one.action for one in suspends] == ["suspend_compute"]
    assert (last.action, last.status) == ("upgrade_project", "scheduling")
    assert last.resources == [project.id]
    assert details_of(last.action, last.details) == UpgradeProjectDetails(to=18)
    with pytest.raises(Conflict, match="is being upgraded by the operation"):
        upgrade_project(project.id, to=18)


def test_a_check_suspends_nothing(project: Project) -> None:
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    (only,) = upgrade_project(project.id, to=18, only_check=True)
    assert only.details == {"to": 18, "only_check": True}


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (17, "does not have Postgres 17; it has 15, 18"),
        (18, "work_mem of ep-.*: must be from 64kB"),
        (15, ""),
    ],
)
def test_what_the_rows_rule_out_is_refused(project: Project, to: int, words: str) -> None:
    Endpoint.objects.filter(project=project).update(
        settings={"pg_settings": {"work_mem": "1kB" if to == 18 else "8MB"}}
    )
    if words:
        with pytest.raises(Unprocessable, match=words):
            upgrade_project(project.id, to=to)
        assert not Operation.objects.filter(action="upgrade_project").exists()
    else:
        # It completes an upgrade that was cut off.
        assert upgrade_project(project.id, to=to)


def test_settings_that_the_new_version_does_not_know_are_named(project: Project) -> None:
    defaults: Any = {"pg_settings": {"promote": "70kB"}}
    Project.objects.filter(id=project.id).update(default_endpoint_settings=defaults)
    with pytest.raises(Unprocessable, match="promote of the project's defaults: Postgres has no"):
        upgrade_project(project.id, to=18, only_check=True)


def test_no_way_to_an_older_version_nor_for_an_unknown_project(project: Project) -> None:
    Project.objects.filter(id=project.id).update(pg_version=18)
    with pytest.raises(Unprocessable, match="there is no way to an older version"):
        upgrade_project(project.id, to=15)
    with pytest.raises(NotFound):
        upgrade_project("no-such-12345678", to=18)


def test_it_can_be_cancelled_until_it_switches(project: Project) -> None:
    (waiting,) = upgrade_project(project.id, to=18)
    assert cancel_upgrade(waiting) is None
    assert Operation.objects.get(id=waiting.id).status == "cancelled"
    (switching,) = upgrade_project(project.id, to=18)
    Operation.objects.filter(id=switching.id).update(details={"to": 18, "switching": True})
    assert "are being switched" in str(cancel_upgrade(switching))
    rule = actions()["upgrade_project"]  # type: ignore[index]
    assert rule.no_way_back_from(UpgradeProjectDetails(to=18)) is None
    assert rule.no_way_back_from(UpgradeProjectDetails(to=18, switching=True))


def test_the_command_follows_the_operation_while_the_metadata_is_silent(project: Project) -> None:
    upgrading, ended = (
        Operation(status=status, steps=[{"name": "checking_catalog"}])
        for status in ("running", "finished")
    )
    silence = [OperationalError("no answer within 30 seconds"), InterfaceError("closed")]
    output = StringIO()
    with mock.patch.object(Operation.objects, "get", side_effect=[*silence, upgrading, ended]):
        call_command("upgrade_project", project.id, "--to", "18", stdout=output)
    _, *shown = output.getvalue().splitlines()
    assert shown == [
        "  Perch's own database does not answer, still waiting",
        "  checking catalog",
        "The project has Postgres 18 now.",
    ]
