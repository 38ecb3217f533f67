"""Reads the host name (SNI) in a ClientHello, the first message of a TLS handshake."""

import ssl
from typing import Any


class _Handshake(ssl.SSLObject):
    server_name: str | None = None


def server_name_in(hello: bytes) -> str | None:
    """Returns the host name that the client asks for; None if it asks for none, or begins no TLS
    handshake. Raises SSLWantReadError if the message goes on behind these bytes."""
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    handshake = _CONTEXT.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    assert isinstance(handshake, _Handshake)
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        raise
    except ssl.SSLError:
        pass  # `_remember` ends every handshake
    return handshake.server_name


def _remember(handshake: Any, name: str | None, _: ssl.SSLContext) -> int:
    handshake.server_name = name
    return ssl.ALERT_DESCRIPTION_USER_CANCELLED


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_CONTEXT.sslobject_class = _Handshake
_CONTEXT.sni_callback = _remember
