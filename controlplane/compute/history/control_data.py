"""What Postgres's pg_controldata tells of a data directory."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from controlplane.compute.accounts import Account, running_as
from controlplane.compute.binaries import bin_for
from controlplane.compute.history.log import parse_lsn

SHUT_DOWN = "shut down"
BOUND = 10.0  # seconds


class ControlDataUnreadable(Exception):
    """pg_control is missing or damaged; the message is pg_controldata's own."""


@dataclass(frozen=True)
class ControlData:
    is_shut_down: bool
    system_id: int
    # The latest checkpoint: where its record begins, where redo begins, and its timeline.
    checkpoint: int
    redo: int
    timeline: int
    max_prepared_transactions: int


def read_control_data(data_dir: Path, account: Account) -> ControlData:
    """Read it as the account that owns the directory. Raises ControlDataUnreadable, OSError."""
    done = subprocess.run(
        [bin_for(data_dir) / "pg_controldata", "-D", data_dir],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        **running_as(account),
    )
    if done.returncode:
        raise ControlDataUnreadable(done.stderr.strip())
    fields = dict(re.findall(r"^([^:]+): +(.*)$", done.stdout, re.MULTILINE))
    try:
        return ControlData(
            fields["Database cluster state"] == SHUT_DOWN,
            int(fields["Database system identifier"]),
            parse_lsn(fields["Latest checkpoint location"]),
            parse_lsn(fields["Latest checkpoint's REDO location"]),
            int(fields["Latest checkpoint's TimeLineID"]),
            int(fields["max_prepared_xacts setting"]),
        )
    except (KeyError, ValueError) as error:
        raise ControlDataUnreadable(f"pg_controldata has no {error}") from error
