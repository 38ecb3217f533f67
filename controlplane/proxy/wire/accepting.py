"""How long a client had waited when its connection was accepted."""

import socket
import struct

# The member tcpi_last_data_recv of struct tcp_info, in milliseconds, after 8 bytes and 11 numbers.
_SINCE_LAST_DATA = struct.Struct("=52xI")


def waited_for_accept(connection: socket.socket) -> float:
    """Returns the seconds since the last data came from the client, or, before any, since the
    kernel has connected it. Called at once after the accept, this is how long the client has
    waited for that: after its first packet, every client waits for an answer."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SINCE_LAST_DATA.size)
    except OSError:
        return 0.0  # it has been reset
    if len(found) < _SINCE_LAST_DATA.size:
        return 0.0
    (milliseconds,) = _SINCE_LAST_DATA.unpack(found)
    return float(milliseconds) / 1000
