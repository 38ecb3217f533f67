"""The replication slots of Perch's own in a compute, which keep log from being removed. They follow
the branch's settings: starts and rounds of the worker drop one that nothing wants any more."""

from pathlib import Path

from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.processes.session import session


def has_slot(branch_id: str, name: str) -> bool:
    """Whether the branch's Postgres, running or not, has the slot."""
    return (data_dir(branch_id) / "pg_replslot" / name).exists()


def drop_slot(branch_id: str, sockets: Path, name: str) -> None:
    """Remove the slot, if the running compute has it, and end the connection that uses it. Raises
    psycopg.Error."""
    if not has_slot(branch_id, name):
        return
    with session(sockets) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            [name],
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [name],
        )
