"""Clients that are joined to no compute and wait until they send something."""

from controlplane.proxy import messages
from controlplane.proxy.channel import Channel


async def speaks_again(client: Channel, *, is_within: bool = False) -> bool:
    """Waits until the client sends something. Returns False if that is a Terminate message.

    `is_within` says that the client is in the middle of a message, so its next bytes cannot be a
    Terminate message. What it sends is left for `take_ahead`. Raises ConnectionLost.
    """
    while True:
        ahead = await client.look_ahead()
        if is_within:
            return True
        if ahead.startswith(messages.TERMINATE):
            return False
        if not messages.TERMINATE.startswith(ahead):
            return True
        await client.read_ahead()
