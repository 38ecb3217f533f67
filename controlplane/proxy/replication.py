"""Replication connections: `replication` among the start-up parameters asks for one."""

from dataclasses import replace

from controlplane.proxy.errors import ReplicationThroughPooler
from controlplane.proxy.routing import Destination

# What Postgres reads as no; everything else asks for one of its kinds, or is wrong.
_NO = (b"false", b"off", b"no", b"0", b"f", b"n")


def for_the_pooler(destination: Destination) -> Destination:
    """The destination, without the parameter where it leads to a pooler, which knows none such.

    Raises ReplicationThroughPooler: its server connections are for transactions.
    """
    asked = destination.parameters.get(b"replication")
    if not destination.pooled or asked is None:
        return destination
    if asked.lower() not in _NO:
        raise ReplicationThroughPooler
    rest = {name: value for name, value in destination.parameters.items() if name != b"replication"}
    return replace(destination, parameters=rest)
