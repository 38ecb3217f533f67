"""Clients that are joined to nothing, and wait without a compute until they ask for something."""

from controlplane.proxy import messages
from controlplane.proxy.channel import Channel


async def speaks_again(client: Channel, *, is_within: bool = False) -> bool:
    """Waits for what the client sends, perhaps within a message; False where it takes its leave.

    What it sends is left for `take_ahead`. Raises ConnectionLost.
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
