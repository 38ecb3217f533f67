"""Sets the state of an endpoint: its row, and the event that records it."""

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
    """Set the endpoint's state, and record an event if the state changes. The caller holds the
    project's lock; `operations` are those that caused the change."""
    if endpoint.current_state == state:
        return
    event = endpoint_entered(
        project, endpoint, state, operations=operations, reason=reason, actor=actor
    )
    endpoint.enter(state, now=now)
    record(event)
