"""Whether an endpoint's compute can be used now, or will be: the meaning of the endpoint's row and
its unfinished operations for a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from controlplane.models import MAY_SUCCEED, Action, EndpointState
from controlplane.models.connecting import StateRow, UnfinishedOperation, find_state
from controlplane.operations.actions.table import actions, details_of
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.wire.errors import ProjectMoved, WakeFailed


@dataclass(frozen=True, slots=True)
class ComputeState:
    branch_id: str
    disabled: bool
    # Identifies one run of the compute; None while the compute cannot be used.
    run: str | None
    # True if the unfinished operations lead to an active endpoint. If they do not, and `run` is
    # None, nothing will change until somebody asks for a start.
    is_coming: bool


class ComputeStates:
    def __init__(self, database: ControlDatabase, host_id: str) -> None:
        """Of computes on the host `host_id`."""
        self._database = database
        self._host_id = host_id
        self.cache: EndpointCache[ComputeState] = EndpointCache(
            is_unavailable=lambda: database.is_unavailable
        )

    async def find(self, endpoint_id: str) -> ComputeState:
        """Returns the endpoint's state, from memory if it is known. Raises WakeFailed if there is
        no such endpoint, ProjectMoved if it is on another host, ControlPlaneUnavailable."""
        return await self.cache.read(
            endpoint_id,
            "",
            partial(self._ask, endpoint_id),
            is_permanent=lambda state: state.run is not None,
        )

    async def look(self, endpoint_id: str) -> ComputeState:
        """As `find`, but always asks the database."""
        self.cache.invalidate(endpoint_id)
        return await self.find(endpoint_id)

    async def _ask(self, endpoint_id: str) -> ComputeState:
        row = await self._database.ask(partial(find_state, endpoint_id=endpoint_id))
        if row is None:
            raise WakeFailed("endpoint not found")
        if row.host_id != self._host_id:
            raise ProjectMoved
        return _state_of(row)


def _state_of(row: StateRow) -> ComputeState:
    heading_for = _state_after(row.unfinished) or row.current_state
    usable = row.current_state == EndpointState.ACTIVE and not any(
        map(will_stop_compute, row.unfinished)
    )
    return ComputeState(
        branch_id=row.branch_id,
        disabled=row.disabled,
        run=row.started_at.isoformat() if usable and row.started_at else None,
        is_coming=heading_for == EndpointState.ACTIVE,
    )


def will_stop_compute(operation: UnfinishedOperation) -> bool:
    """True if a running compute is of no use to a client, because it is about to be suspended, to
    be restarted for new settings or to start elsewhere."""
    details = details_of(operation.action, operation.details)
    return actions()[Action(operation.action)].keeps_clients_out(details, operation.status)


def why_compute_stops(unfinished: Sequence[UnfinishedOperation]) -> str:
    """Returns why the running compute is about to stop, in words for its clients; "" if it is
    not."""
    stops = [one.action for one in unfinished if will_stop_compute(one)]
    if not stops:
        return ""
    if Action.START_COMPUTE in stops:
        return "the project moves to another host; connect again"
    if _state_after(unfinished) == EndpointState.ACTIVE:
        return "the endpoint is restarted; connect again"
    return "the endpoint is suspended; connect again to start it"


def _state_after(unfinished: Sequence[UnfinishedOperation]) -> str | None:
    """Returns the endpoint's state once all of the operations, oldest first, are done. None if they
    do not change it. An operation that is being cancelled is ignored."""
    states = [
        actions()[Action(one.action)].endpoint_after
        for one in unfinished
        if one.status in MAY_SUCCEED
    ]
    return next((state for state in reversed(states) if state), None)
