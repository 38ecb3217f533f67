"""Finds computes that run but do not answer. An operation checks each one and ends it if it still
hangs. The endpoint, which would otherwise stay `active`, is then idle and says why.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import psycopg

from controlplane.actors import CHECK, acting_as
from controlplane.compute import observation
from controlplane.models import UNFINISHED, Action, Endpoint, EndpointState, Operation
from controlplane.operations.details import CheckAvailabilityDetails
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# After this many unanswered polls in a row a compute is considered hung. Polls after the first
# unanswered one follow immediately, so this takes at most 30 seconds, including the time between
# polls and the wait for each answer.
MAX_SILENT_LOOKS = 3

Seen = TypeVar("Seen")

# How many of the last polls of each endpoint's compute were unanswered. Polls of one endpoint never
# run at the same time.
_silent_looks: Counter[str] = Counter()


def counting_silence(look: Callable[[str], Seen]) -> Callable[[str], Seen]:
    """Wrap `look`, which takes an endpoint's id, so that unanswered calls are counted."""

    def listen(endpoint_id: str) -> Seen:
        try:
            seen = look(endpoint_id)
        except psycopg.Error as error:
            if observation.is_no_answer(error):
                _silent_looks[endpoint_id] += 1
            else:
                del _silent_looks[endpoint_id]
            raise
        del _silent_looks[endpoint_id]
        return seen

    return listen


def is_silent(endpoint_id: str) -> bool:
    """Return whether the last poll of the endpoint's compute was unanswered; if so, the next is due
    immediately."""
    return endpoint_id in _silent_looks


def check_silent(endpoints: Iterable[Endpoint]) -> None:
    """Schedule a check for each of the active endpoints whose compute has been silent too long.

    The counts of all other endpoints are dropped, because those are no longer active.
    """
    present = {endpoint.id: endpoint for endpoint in endpoints}
    for endpoint_id, count in list(_silent_looks.items()):
        if endpoint_id not in present:
            del _silent_looks[endpoint_id]
        elif count >= MAX_SILENT_LOOKS:
            del _silent_looks[endpoint_id]
            log.warning("compute silent", extra={"endpoint": endpoint_id, "looks": count})
            _check(present[endpoint_id])


def _check(endpoint: Endpoint) -> None:
    project_id = endpoint.project_id
    with apart(project_id), acting_as(CHECK), locked_project(project_id) as project:
        # An operation may have been scheduled meanwhile. Any operation deals with the compute.
        if Operation.objects.filter(endpoint=endpoint, status__in=UNFINISHED).exists():
            return
        current = Endpoint.objects.select_related("branch").filter(
            id=endpoint.id, deleted_at=None, current_state=EndpointState.ACTIVE
        )
        for found in current:
            details = CheckAvailabilityDetails(was_silent=True)
            action = Action.CHECK_AVAILABILITY
            schedule(project, [Step(action, branch=found.branch, endpoint=found, details=details)])
