"""The table of actions: everything that differs from one action to another.

Readers of the table: the engine (what to run, within which bound, when to retry), the effects (the
state that follows), the services and the proxy (whether clients may connect meanwhile). Code that
needs to know something about an action looks it up here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from controlplane.features import features
from controlplane.models import Action, EndpointState, Lane, Operation, OperationStatus
from controlplane.operations.actions import handlers
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.project_upgrade import undo_upgrade, upgrade_project
from controlplane.operations.details import (
    ApplyConfigDetails,
    CheckAvailabilityDetails,
    CreateBranchDetails,
    Details,
    StartComputeDetails,
    SuspendComputeDetails,
    UpgradeProjectDetails,
)

# Seconds before each retry. If the attempt after the last pause fails, the operation fails.
RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class ActionRule:
    """The properties of one action."""

    # Does the work. The module `handlers` says what this function may rely on.
    run: Callable[[Attempt], None]
    # The class of the details of the action's operations.
    details: type[Details] = Details
    # The state of the operation's endpoint once the operation has finished (specification, 3.1);
    # None leaves the state as it is.
    endpoint_after: EndpointState | None = None
    # True if the action starts the endpoint's compute for clients that want to connect.
    is_start: bool = False
    # True if the branch's data exists once the operation has finished.
    makes_branch: bool = False
    # The lane, unless the caller of `schedule` names another one.
    lane: Lane = Lane.REQUESTS
    # Seconds without progress after which an attempt is given up.
    bound: float = 60.0
    # Seconds before each retry.
    retry_pauses: tuple[float, ...] = RETRY_DELAYS
    # Why the operation cannot be cancelled once it has begun; None if it can be cancelled and
    # brought to a safe point.
    no_way_back: str | None = None
    # Removes what an operation that failed or was cancelled has made. None for actions that make
    # at most a copy of a branch.
    undo: Callable[[Operation], None] | None = None
    # Changes the rows for an operation that has succeeded, in the transaction that ends it
    # (`effects`). None for actions of which `effects` knows what follows.
    effect: Callable[[Operation, Details, datetime], None] | None = None

    def keeps_clients_out(self, details: Details, status: str) -> bool:
        """Return whether a client that connects while the operation is unfinished has to wait for
        its end: the compute will be suspended, restarted, or started on another branch or
        host."""
        if isinstance(details, ApplyConfigDetails):
            return details.may_restart
        if isinstance(details, StartComputeDetails):
            return details.moving
        if isinstance(details, SuspendComputeDetails) and details.after_recovery:
            return status == OperationStatus.RUNNING
        return self.endpoint_after == EndpointState.IDLE

    def no_way_back_from(self, details: Details) -> str | None:
        """Return why an operation that has begun cannot be cancelled; None if it can."""
        if isinstance(details, UpgradeProjectDetails) and details.switching:
            return "the project's branches are being switched to the other version"
        return self.no_way_back


CORE_ACTIONS: Mapping[Action, ActionRule] = {
    Action.CREATE_TIMELINE: ActionRule(handlers.create_timeline, makes_branch=True),
    Action.CREATE_BRANCH: ActionRule(
        handlers.create_branch, details=CreateBranchDetails, makes_branch=True
    ),
    Action.START_COMPUTE: ActionRule(
        handlers.start_compute,
        details=StartComputeDetails,
        endpoint_after=EndpointState.ACTIVE,
        is_start=True,
    ),
    Action.SUSPEND_COMPUTE: ActionRule(
        handlers.suspend_compute,
        details=SuspendComputeDetails,
        endpoint_after=EndpointState.IDLE,
        no_way_back="the endpoint is being suspended; start it again once that is over",
    ),
    Action.APPLY_CONFIG: ActionRule(
        handlers.apply_config, details=ApplyConfigDetails, endpoint_after=EndpointState.ACTIVE
    ),
    Action.CHECK_AVAILABILITY: ActionRule(
        handlers.check_availability, details=CheckAvailabilityDetails, lane=Lane.UPKEEP
    ),
    Action.DELETE_TIMELINE: ActionRule(
        handlers.delete_timeline,
        lane=Lane.UPKEEP,
        no_way_back="the branch's data is being removed",
    ),
    Action.DELETE_TENANT: ActionRule(
        handlers.delete_tenant,
        lane=Lane.UPKEEP,
        no_way_back="the project's data is being removed",
    ),
    Action.UPGRADE_PROJECT: ActionRule(
        upgrade_project, details=UpgradeProjectDetails, bound=600.0, undo=undo_upgrade
    ),
}

STARTS = [action for action, rule in CORE_ACTIONS.items() if rule.is_start]
# Actions that leave no compute running.
ENDS = [Action.SUSPEND_COMPUTE, Action.DELETE_TIMELINE, Action.DELETE_TENANT]
MAKES_BRANCH = [action for action, rule in CORE_ACTIONS.items() if rule.makes_branch]


@cache
def actions() -> Mapping[Action, ActionRule]:
    """The rules of all actions, those of features too."""
    rules = dict(CORE_ACTIONS)
    for feature in features():
        rules.update(feature.actions)
    return rules


def rule_of(operation: Operation) -> ActionRule:
    return actions()[Action(operation.action)]


def details_of(action: str, stored: Mapping[str, Any]) -> Details:
    """Return an operation's details, read from what its row stores."""
    return actions()[Action(action)].details.from_json(stored)
