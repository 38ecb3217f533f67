"""Asks a client for its password by SCRAM, over its channel. Called by a session before anything
of the endpoint is touched."""

from collections.abc import Awaitable, Callable

from controlplane.proxy import messages, scram
from controlplane.proxy.channel import Channel
from controlplane.proxy.errors import PasswordFailed, ProtocolViolation

# Postgres's own limits on what a client may send before it has shown who it is, in bytes.
_MAX_SASL_MESSAGE = 1024 + 64
_PASSWORD_MESSAGE = b"p"


async def authenticate(
    channel: Channel,
    verifier: scram.Verifier,
    *,
    role: str,
    channel_binding: bytes | None,
    preamble: bytes = b"",
) -> bytes:
    """Runs the exchange; `preamble` goes out with its first message.

    Returns the AuthenticationSASLFinal that is still to be sent: it travels with what the compute
    says next. Raises PasswordFailed, ProtocolViolation or ConnectionLost.
    """
    offered = [scram.MECHANISM]
    if channel_binding is not None:
        offered.insert(0, scram.MECHANISM_PLUS)
    await channel.write(preamble + messages.authentication_sasl(offered))
    try:
        mechanism, client_first = messages.sasl_initial_response(await _read_password(channel))
        if mechanism not in offered:
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        server = scram.ScramServer(verifier, mechanism=mechanism, channel_binding=channel_binding)
        if not client_first:
            # Allowed by the protocol: the client's first message then answers an empty challenge.
            await channel.write(messages.authentication_sasl_continue(b""))
            client_first = await _read_password(channel)
        server_first = server.first(client_first)
        await channel.write(messages.authentication_sasl_continue(server_first))
        server_final = server.final(await _read_password(channel))
    except (messages.MalformedMessage, scram.ScramMalformed) as error:
        raise ProtocolViolation(str(error)) from error
    if server_final is None:
        raise PasswordFailed(role)
    return messages.authentication_sasl_final(server_final)


async def authenticate_in_clear(
    channel: Channel,
    fits: Callable[[bytes], Awaitable[bool]],
    *,
    role: str,
    preamble: bytes = b"",
) -> None:
    """Asks for the password itself, which only an encrypted connection or this machine may carry.
    A client may have sent it before it was asked, as Neon's over WebSocket does.

    Raises PasswordFailed, ProtocolViolation or ConnectionLost.
    """
    await channel.write(preamble + messages.AUTHENTICATION_CLEARTEXT_PASSWORD)
    password, terminator, rest = (await _read_password(channel)).partition(b"\0")
    if not terminator or rest:
        raise ProtocolViolation("malformed password message")
    if not await fits(password):
        raise PasswordFailed(role)


async def _read_password(channel: Channel) -> bytes:
    header = await channel.read(messages.HEADER_SIZE)
    kind, size = header[:1], int.from_bytes(header[1:], "big") - 4
    if kind != _PASSWORD_MESSAGE:
        raise ProtocolViolation(f"expected password response, got message type {kind[0]}")
    if not 0 <= size <= _MAX_SASL_MESSAGE:
        raise ProtocolViolation("invalid message length")
    return await channel.read(size)
