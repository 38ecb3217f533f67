"""The table of actions: every action has its row, and stored details are read unchanged."""

import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from controlplane.actors import ActorType
from controlplane.compute.data.branch_data import NoSuchBranchData
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.processes.process import StartFailed, _complaints
from controlplane.models import (
    Action,
    Configuration,
    EndpointState,
    Operation,
    OperationStatus,
)
from controlplane.operations.actions import words as of_operations
from controlplane.operations.actions.table import actions, details_of
from controlplane.operations.actions.words import failure_message, without_paths
from controlplane.operations.details import (
    ApplyConfigDetails,
    Details,
    StartComputeDetails,
    SuspendComputeDetails,
)
from controlplane.operations.engine.cancelling import cancel_refusal

BEFORE: Configuration = {
    "settings": {"pg_settings": {"work_mem": "9MB"}},
    "autoscaling_limit_min_cu": 0.25,
    "autoscaling_limit_max_cu": 2.0,
    "pooler_enabled": True,
}
EXAMPLES = [
    (Action.APPLY_CONFIG, ApplyConfigDetails()),
    (Action.APPLY_CONFIG, ApplyConfigDetails(before=BEFORE)),
    (Action.APPLY_CONFIG, ApplyConfigDetails(from_branch_id="br-old-place-123456")),
    (Action.SUSPEND_COMPUTE, SuspendComputeDetails()),
    (Action.SUSPEND_COMPUTE, SuspendComputeDetails(if_idle=True)),
    (Action.START_COMPUTE, StartComputeDetails()),
    (Action.START_COMPUTE, StartComputeDetails(announced=True, moving=True)),
]


@pytest.mark.parametrize("action", Action)
def test_every_action_has_its_rule(action: Action) -> None:
    rule = actions()[action]
    assert rule.run.__name__ == action.value
    assert 0 < rule.bound <= 600
    assert list(rule.retry_pauses) == sorted(rule.retry_pauses)
    assert type(details_of(action, {})) is rule.details
    # An action that needs a started endpoint leaves it active; one that makes a branch sets no
    # state.
    assert not rule.is_start or rule.endpoint_after == EndpointState.ACTIVE
    assert not rule.makes_branch or rule.endpoint_after is None


@pytest.mark.parametrize(("action", "details"), EXAMPLES)
def test_details_are_read_as_they_were_stored(action: Action, details: Details) -> None:
    assert details_of(action, details.as_json()) == details
    assert details_of(action, _of_a_later_release(details.as_json())) == details


def _of_a_later_release(stored: dict[str, Any]) -> dict[str, Any]:
    """Add a field at every level, as a later release would that runs beside this one."""
    nested = {
        name: _of_a_later_release(value) if name in ("before", "wanted") else value
        for name, value in stored.items()
    }
    return {**nested, "made_later": True}


@pytest.mark.parametrize(
    ("action", "details", "kept_out"),
    [
        (Action.START_COMPUTE, StartComputeDetails(), False),
        (Action.START_COMPUTE, StartComputeDetails(moving=True), True),
        (Action.CHECK_AVAILABILITY, Details(), False),
        (Action.SUSPEND_COMPUTE, SuspendComputeDetails(), True),
        (Action.SUSPEND_COMPUTE, SuspendComputeDetails(if_idle=True), True),
        # A change of roles and databases alone never needs a restart.
        (Action.APPLY_CONFIG, ApplyConfigDetails(), False),
        (Action.APPLY_CONFIG, ApplyConfigDetails(before=BEFORE), True),
        (Action.APPLY_CONFIG, ApplyConfigDetails(from_branch_id="br-old-place-123456"), True),
    ],
)
def test_which_operations_keep_clients_out(
    action: Action, details: Details, kept_out: bool
) -> None:
    assert actions()[action].keeps_clients_out(details, OperationStatus.RUNNING) is kept_out


@pytest.mark.parametrize("status", [OperationStatus.SCHEDULING, OperationStatus.RUNNING])
def test_the_suspend_of_a_restore_keeps_clients_out_once_it_has_begun(status: str) -> None:
    details = SuspendComputeDetails(after_recovery=True)
    kept_out = actions()[Action.SUSPEND_COMPUTE].keeps_clients_out(details, status)
    assert kept_out is (status == OperationStatus.RUNNING)


@pytest.mark.parametrize("action", Action)
def test_an_operation_of_the_platform_cannot_be_cancelled(action: Action) -> None:
    """Such operations come from quotas and, for example, from the removal of projects."""
    operation = Operation(action=action, status="running", initiator_type=ActorType.PLATFORM)
    assert cancel_refusal(operation) == (
        "the platform scheduled this operation itself, so it cannot be cancelled by request"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StartFailed("no space"), "no space; the next start tries again; if this persists, tell"),
        (NoSuchBranchData("no data"), "no data; have this host's operator restore it"),
        (NotEnoughSpace("it is full"), "it is full; delete branches that are not needed"),
        (psycopg.OperationalError("it went away"), "it went away; try again; if this persists"),
        (OSError(13, "Permission denied", "/var"), "this host says: Permission denied; try again"),
        (KeyError("x"), "internal error (KeyError); try again; if this persists, tell this host's"),
        (StartFailed(""), "internal error (StartFailed)"),
    ],
)
def test_errors_say_what_happened_and_what_to_do(error: Exception, words: str) -> None:
    assert failure_message(error).startswith(words)


def test_errors_name_no_path_of_the_host() -> None:
    state, sockets = settings.STATE_DIR, settings.SOCKET_DIR
    told = (
        f'could not open file "{state}/branches/br-a/data/global/pg_control": No such file, '
        f"see {sockets}/ep-a/.s.PGSQL.5432 and {state}"
    )
    assert without_paths(told) == (
        'could not open file "pg_control": No such file, see .s.PGSQL.5432 and ' + state.name
    )
    shared = 'could not open "/usr/share/postgresql/18/timezonesets/Mars" and /proc/7/stat'
    assert without_paths(shared) == 'could not open "Mars" and stat'
    assert without_paths("SELECT '/home/alice/x'") == "SELECT '/home/alice/x'"


def test_errors_contain_no_real_path_behind_a_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Postgres names its files by their real paths, whatever links lead to them."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.setattr(sys, "prefix", str(link))
    of_operations._host_paths.cache_clear()
    try:
        told = f'could not load "{real}/lib/x.so", {link}/share and {settings.PROXY_SOCKET_DIR}/1'
        assert without_paths(told) == 'could not load "x.so", share and 1'
    finally:
        of_operations._host_paths.cache_clear()


def test_a_shortened_log_of_postgres_begins_with_a_whole_word() -> None:
    """A path whose beginning is cut off would not be recognized as a path."""
    said = f"it looked in /secret/{'x' * 380}/pg_control\nand found nothing there"
    assert _complaints(said) == "and found nothing there"
    starting = "FATAL:  the database system is starting up\n"
    assert _complaints(2 * starting) == "the database system is starting up"
    assert _complaints("word " * 200).split(" ") == ["word"] * 80
    assert _complaints("x" * 500) == ""
