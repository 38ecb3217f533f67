"""The state directory: made and checked before anything is put into it."""

from pathlib import Path

from django.conf import settings

from controlplane.compute.binaries import compute_account, own_directory


class StateDirectoryUnusable(Exception):
    """The state directory cannot serve; the message says why and what to do."""


def prepare_state_directory() -> None:
    """Make the state directory and those below it that every process relies on.

    Raises StateDirectoryUnusable, binaries.PostgresUnusable.
    """
    state = Path(settings.STATE_DIR)
    state.mkdir(parents=True, exist_ok=True)
    (state / "locks").mkdir(mode=0o700, exist_ok=True)
    if account := compute_account():
        # Its own directories lie within, so the account must be able to pass through.
        state.chmod(0o711)
        for parent in state.parents:
            if not parent.stat().st_mode & 0o001:
                raise StateDirectoryUnusable(
                    f"the state directory {state} lies below {parent}, which the account "
                    f'"{account.name}" of the computes cannot enter; choose another place'
                )
    own_directory(state / "branches")
    sockets = Path(settings.SOCKET_DIR)
    sockets.parent.mkdir(parents=True, exist_ok=True)
    own_directory(sockets)
