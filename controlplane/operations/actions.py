"""The actions: all that is particular to one, in one table.

Read by the engine (what to run, within which bound, when to try again), the effects (the state
that follows), the services and the proxy (whether clients may come in meanwhile). Whoever asks
a question about an action asks it here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.models import Action, EndpointState, Lane, Operation
from controlplane.operations import work
from controlplane.operations.details import (
    ApplyConfigDetails,
    CheckAvailabilityDetails,
    CreateBranchDetails,
    Details,
    SuspendComputeDetails,
)
from controlplane.operations.work import Attempt

# Seconds before each further attempt; after the last one the operation has failed.
RETRY_PAUSES = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class ActionRule:
    """What is particular to an action."""

    # Does the work; see `work` for what it may rely on.
    run: Callable[[Attempt], None]
    # The class of its operations' details.
    details: type[Details] = Details
    # The state of the operation's endpoint once it has finished (specification, 3.1); None
    # leaves it as it is.
    endpoint_after: EndpointState | None = None
    # Whether its endpoint's compute is being started for whoever wants to connect.
    is_start: bool = False
    # Whether the branch's data is there once it has finished.
    makes_branch: bool = False
    # Who waits for it, unless whoever schedules it knows better.
    lane: Lane = Lane.REQUESTS
    # Seconds that an attempt may stand still before it is given up.
    bound: float = 60.0
    # Seconds before each further attempt.
    retry_pauses: tuple[float, ...] = RETRY_PAUSES
    # Why it cannot be cancelled once it has begun; None where it can be brought to a safe point.
    no_way_back: str | None = None

    def keeps_clients_out(self, details: Details) -> bool:
        """Whether a client that comes while the operation is unfinished waits for its end: the
        compute is about to be suspended, to be restarted or to come up elsewhere."""
        if isinstance(details, ApplyConfigDetails):
            return details.may_restart
        return self.endpoint_after == EndpointState.IDLE


ACTIONS: Mapping[Action, ActionRule] = {
    Action.CREATE_TIMELINE: ActionRule(work.create_timeline, makes_branch=True),
    Action.CREATE_BRANCH: ActionRule(
        work.create_branch, details=CreateBranchDetails, makes_branch=True
    ),
    Action.START_COMPUTE: ActionRule(
        work.start_compute, endpoint_after=EndpointState.ACTIVE, is_start=True
    ),
    Action.SUSPEND_COMPUTE: ActionRule(
        work.suspend_compute,
        details=SuspendComputeDetails,
        endpoint_after=EndpointState.IDLE,
        no_way_back="the endpoint is being suspended; start it again once that is over",
    ),
    Action.APPLY_CONFIG: ActionRule(
        work.apply_config, details=ApplyConfigDetails, endpoint_after=EndpointState.ACTIVE
    ),
    Action.CHECK_AVAILABILITY: ActionRule(
        work.check_availability, details=CheckAvailabilityDetails, lane=Lane.UPKEEP
    ),
    Action.DELETE_TIMELINE: ActionRule(
        work.delete_timeline,
        lane=Lane.UPKEEP,
        no_way_back="the branch's data is being removed",
    ),
    Action.DELETE_TENANT: ActionRule(
        work.delete_tenant,
        lane=Lane.UPKEEP,
        no_way_back="the project's data is being removed",
    ),
}

STARTS = [action for action, rule in ACTIONS.items() if rule.is_start]
# Those that leave no compute running.
ENDS = [Action.SUSPEND_COMPUTE, Action.DELETE_TIMELINE, Action.DELETE_TENANT]
MAKES_BRANCH = [action for action, rule in ACTIONS.items() if rule.makes_branch]


def rule_of(operation: Operation) -> ActionRule:
    return ACTIONS[Action(operation.action)]


def details_of(action: str, stored: Mapping[str, Any]) -> Details:
    """An operation's details, from what its row holds."""
    return ACTIONS[Action(action)].details.from_json(stored)
