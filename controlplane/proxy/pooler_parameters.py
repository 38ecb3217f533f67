"""Converts start-up parameters for a pooler. PgBouncer passes them on by SQL statements. If
Postgres refuses those, PgBouncer ends the connection later, with a meaningless error or none."""

import re
from dataclasses import replace

from controlplane.proxy.errors import ReplicationThroughPooler, UnreadableParameter
from controlplane.proxy.routing import Destination

# The values that Postgres reads as false; any other asks for a replication connection or is wrong.
_NO = (b"false", b"off", b"no", b"0", b"f", b"n")
# The bytes that Postgres replaces in an application name.
_NOT_PRINTABLE = re.compile(rb"[^ -~]")


def for_the_pooler(destination: Destination) -> Destination:
    """Returns the destination, with its parameters converted if it leads to a pooler.

    Raises ReplicationThroughPooler, because the pooler's server connections are for transactions,
    and UnreadableParameter.
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
    r"""Returns the byte as Postgres writes it: `\xff`."""
    return rb"\x%02x" % ord(byte[0])


def _check_readable(name: bytes, value: bytes) -> None:
    try:
        name.decode()
        value.decode()
    except UnicodeDecodeError:
        raise UnreadableParameter(name.decode(errors="backslashreplace")) from None
