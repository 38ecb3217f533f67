"""Asks a client for its password over its channel, by SCRAM or in clear text. A session does this
before it touches anything of the endpoint."""

from controlplane.proxy.authentication import scram
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import PasswordFailed, ProtocolViolation

# Postgres's own limits for the messages of a client that has not authenticated, in bytes.
_MAX_SASL_BYTES = 1024 + 64
_MAX_PASSWORD_BYTES = 8192
_PASSWORD_MESSAGE = b"p"


async def authenticate(
    channel: Channel,
    verifier: scram.Verifier,
    *,
    role: str,
    channel_binding: bytes | None,
    preamble: bytes = b"",
) -> bytes:
    """Runs the SCRAM exchange; `preamble` is sent with its first message.

    Returns the AuthenticationSASLFinal, still to be sent together with what the compute sends next.
    Raises PasswordFailed, ProtocolViolation or ConnectionLost.
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
            # The protocol allows this. The client then answers an empty challenge.
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


async def ask_for_password(channel: Channel, *, preamble: bytes = b"") -> bytes:
    """Asks for the password in clear text and returns it; `preamble` is sent with the question.

    Raises ProtocolViolation or ConnectionLost.
    """
    await channel.write(preamble + messages.authentication_cleartext_password())
    password, end, rest = (await _read_password(channel, most=_MAX_PASSWORD_BYTES)).partition(b"\0")
    if not end or rest:
        raise ProtocolViolation("invalid password packet size")
    return password


async def _read_password(channel: Channel, *, most: int = _MAX_SASL_BYTES) -> bytes:
    header = await channel.read(messages.HEADER_SIZE)
    kind, size = header[:1], int.from_bytes(header[1:], "big") - 4
    if kind != _PASSWORD_MESSAGE:
        raise ProtocolViolation(f"expected password response, got message type {kind[0]}")
    if not 0 <= size <= most:
        raise ProtocolViolation("invalid message length")
    return await channel.read(size)
