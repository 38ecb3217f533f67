"""The feature of several hosts: moves of projects, and second hosts that receive the log."""

from collections.abc import Sequence

from controlplane.features import REST_INTERVAL, SHORT_REST_INTERVAL, Feature, Round
from controlplane.fleet import messages
from controlplane.fleet.messages import HostLinks, LinkBroken, MoveInterrupted, MoveRefused
from controlplane.fleet.moves import HostNotReady, go_on_emptying
from controlplane.fleet.moving.following import NotFollowed
from controlplane.fleet.moving.moved_away import remove_moved_away
from controlplane.fleet.moving.project_move import end_move, move_project, undo_move
from controlplane.fleet.moving.receiving_moves import begin_receiving, connect_to_receiver
from controlplane.fleet.receivers import receivewal
from controlplane.fleet.receivers.log_receivers import (
    attach,
    connect_to_source,
    forget_receivers,
    hold_durability,
)
from controlplane.fleet.receivers.lost_receivers import closing, take_out_ended, watch_receivers
from controlplane.fleet.receivers.receptions import look_after_received
from controlplane.models import Action, Host
from controlplane.operations.actions.table import ActionRule
from controlplane.operations.actions.words import AGAIN
from controlplane.operations.details import MoveProjectDetails


def _begin(host: Host) -> Sequence[Round]:
    # Only a worker needs it, and it brings the proxy's TLS into memory.
    from controlplane.fleet.host_links import carry_log, connect_to_host

    messages.links = HostLinks(connect_to_host, carry_log)
    begin_receiving(host)
    return ()


FLEET = Feature(
    actions={
        Action.MOVE_PROJECT: ActionRule(
            move_project,
            details=MoveProjectDetails,
            bound=600.0,
            # The other host's worker and proxy may be restarting.
            retry_pauses=(1.0, 2.0, 4.0, 8.0, 15.0),
            undo=undo_move,
            effect=end_move,
        ),
    },
    rounds=(
        Round(0.5, watch_receivers, at_rest=REST_INTERVAL),
        Round(2, hold_durability, at_rest=REST_INTERVAL),
        Round(5, forget_receivers, at_rest=REST_INTERVAL),
        Round(5, look_after_received),
        Round(5, remove_moved_away, at_rest=SHORT_REST_INTERVAL),
        Round(60, go_on_emptying),
    ),
    begin=_begin,
    before_clients=attach,
    host_calls={
        "take_out_ended": closing(take_out_ended),
        "open_receiver": connect_to_receiver,
        "open_log_source": connect_to_source,
    },
    received_bytes=lambda: receivewal.bytes_of(receivewal.reception_ids()),
    removable_bytes=lambda: receivewal.bytes_of(receivewal.removable),
    advice={
        # The other host's words have the advice.
        MoveInterrupted: "",
        LinkBroken: AGAIN,
        MoveRefused: "",
        NotFollowed: AGAIN,
        HostNotReady: "try again",
    },
)
