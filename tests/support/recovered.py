"""Recovers past moments in this process, as the worker does, and reads what they hold."""

import secrets
from datetime import datetime

import psycopg

from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.history.keeping import copy_log
from controlplane.history.local.chain import holding_history
from controlplane.history.local.moments import Moment, find_lsn, find_time
from controlplane.history.local.recovering import serving_moment
from tests.support.recorded import rows_in


def found(branch_id: str, moment: datetime | int) -> Moment:
    """What the moment names in the branch's history, after its log was copied. The caller holds
    the history's lock."""
    copy_log(branch_id)
    if isinstance(moment, datetime):
        return find_time(branch_id, moment)
    return find_lsn(branch_id, moment)


def rows_at(branch_id: str, moment: datetime | int, *, dbname: str) -> frozenset[int]:
    """What the recorder's table held at the branch's moment. No worker may use the state directory,
    which `settings` name."""
    # Its group of processes is named after it, on the whole host.
    scratch = f"br-moment-{secrets.token_hex(4)}"
    with (
        serving_moment(
            scratch,
            lambda: found(branch_id, moment),
            holding=lambda: holding_history(branch_id),
        ) as sockets,
        psycopg.connect(host=str(sockets), user=PLATFORM_ROLE, dbname=dbname) as connection,
    ):
        return rows_in(connection)
