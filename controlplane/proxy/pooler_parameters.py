"""Start-up parameters as a pooler takes them. PgBouncer passes them on by statements, and ends the
connection later, without a word or with one that says nothing, where Postgres refuses those."""

import re
from dataclasses import replace

from controlplane.proxy.errors import ReplicationThroughPooler, UnreadableParameter
from controlplane.proxy.routing import Destination

# What Postgres reads as no; everything else asks for a replication connection, or is wrong.
_NO = (b"false", b"off", b"no", b"0", b"f", b"n")
# What Postgres leaves as it is in an application's name.
_NOT_PRINTABLE = re.compile(rb"[^ -~]")


def for_the_pooler(destination: Destination) -> Destination:
    """The destination, with the parameters as its pooler takes them, where it leads to one.

    Raises ReplicationThroughPooler, as its server connections are for transactions, and
    UnreadableParameter.
    """
    if not destination.pooled:
        return destination
    parameters = dict(destination.parameters)
    if parameters.pop(b"replication", b"no").lower() not in _NO:
        raise ReplicationThroughPooler
    if (name := parameters.get(b"application_name")) is not None:
        parameters[b"application_name"] = _NOT_PRINTABLE.sub(_written_out, name)
    for key, value in parameters.items():
        _check_readable(key, value)
    return replace(destination, parameters=parameters)


def _written_out(byte: re.Match[bytes]) -> bytes:
    r"""As Postgres writes it: `\xff`."""
    return rb"\x%02x" % ord(byte[0])


def _check_readable(name: bytes, value: bytes) -> None:
    try:
        name.decode()
        value.decode()
    except UnicodeDecodeError:
        raise UnreadableParameter(name.decode(errors="backslashreplace")) from None
