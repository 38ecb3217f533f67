"""Two proxy processes behind one port share the clients."""

import signal
from contextlib import ExitStack

from tests.support.place import Place
from tests.support.processes import clients_of, proxy_processes

CLIENTS = 10


def test_clients_are_spread_over_all_processes(shop: Place) -> None:
    """A process that hangs for a while delays nobody, and gets its share of later clients."""
    hanging, other = proxy_processes(shop.stack)
    with ExitStack() as opened:
        hanging.send_signal(signal.SIGSTOP)
        opened.callback(hanging.send_signal, signal.SIGCONT)
        for _ in range(CLIENTS):
            opened.enter_context(shop.connect())
        assert len(clients_of(other, shop.stack)) >= CLIENTS
        hanging.send_signal(signal.SIGCONT)
        # While it wakes up, the first of them may still go to the other process.
        for _ in range(CLIENTS):
            opened.enter_context(shop.connect())
            if clients_of(hanging, shop.stack):
                break
        for _ in range(CLIENTS):
            opened.enter_context(shop.connect())
        counts = [len(clients_of(process, shop.stack)) for process in (hanging, other)]
        assert abs(counts[0] - counts[1]) <= 4, counts
