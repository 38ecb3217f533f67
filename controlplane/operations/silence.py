"""Notices computes that run and answer nobody, and has each checked by an operation that ends it
if it still hangs: so the endpoint, which would go on saying `active`, is idle and says why.
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
from controlplane.operations.locks import locked_project
from controlplane.operations.scheduling import Step, schedule

log = logging.getLogger(__name__)

# So many looks in a row that nobody answers, the later ones right after each other, and a compute
# is taken for hung: within 30 seconds, with the time between looks and that which each waits.
SILENT_LOOKS = 3

Seen = TypeVar("Seen")

# How many of the last looks at an endpoint's compute nobody answered; those at one endpoint
# never run side by side.
_silent_looks: Counter[str] = Counter()


def listening(look: Callable[[str], Seen]) -> Callable[[str], Seen]:
    """The same look into the compute of an endpoint, by its id, counting those in vain."""

    def listen(endpoint_id: str) -> Seen:
        try:
            seen = look(endpoint_id)
        except psycopg.Error as error:
            if observation.is_silence(error):
                _silent_looks[endpoint_id] += 1
            else:
                del _silent_looks[endpoint_id]
            raise
        del _silent_looks[endpoint_id]
        return seen

    return listen


def is_silent(endpoint_id: str) -> bool:
    """Whether the last look at the endpoint's compute was in vain: the next is due at once."""
    return endpoint_id in _silent_looks


def check_silent(endpoints: Iterable[Endpoint]) -> None:
    """Schedule a check of each of the active endpoints whose compute has been silent too long.

    The silence of all others is forgotten: they are active no more.
    """
    present = {endpoint.id: endpoint for endpoint in endpoints}
    for endpoint_id, count in list(_silent_looks.items()):
        if endpoint_id not in present:
            del _silent_looks[endpoint_id]
        elif count >= SILENT_LOOKS:
            del _silent_looks[endpoint_id]
            log.warning("compute silent", extra={"endpoint": endpoint_id, "looks": count})
            _check(present[endpoint_id])


def _check(endpoint: Endpoint) -> None:
    with acting_as(CHECK), locked_project(endpoint.project_id) as project:
        # An operation may have come meanwhile; whatever it is, it has to do with the compute.
        if Operation.objects.filter(endpoint=endpoint, status__in=UNFINISHED).exists():
            return
        still = Endpoint.objects.select_related("branch").filter(
            id=endpoint.id, deleted_at=None, current_state=EndpointState.ACTIVE
        )
        for found in still:
            details = CheckAvailabilityDetails(was_silent=True)
            action = Action.CHECK_AVAILABILITY
            schedule(project, [Step(action, branch=found.branch, endpoint=found, details=details)])
