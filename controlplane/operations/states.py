"""How an endpoint enters another state: its row, and the event that says so."""

from collections.abc import Iterable
from datetime import datetime

from controlplane.actors import Actor
from controlplane.events.changes import endpoint_entered
from controlplane.events.recording import record
from controlplane.models import Endpoint, EndpointState, Operation, Project


def enter(
    project: Project,
    endpoint: Endpoint,
    state: EndpointState,
    *,
    now: datetime,
    operations: Iterable[Operation] = (),
    reason: str = "",
    actor: Actor | None = None,
) -> None:
    """Have the endpoint be in the state, and tell of it where it was not. The caller holds the
    project's lock; `operations` are what has led there."""
    if endpoint.current_state == state:
        return
    event = endpoint_entered(
        project, endpoint, state, operations=operations, reason=reason, actor=actor
    )
    endpoint.enter(state, now=now)
    record(event)
