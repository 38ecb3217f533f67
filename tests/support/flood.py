"""Floods a server with requests, in a process of its own: `with flood(...)`. The process shares
only the processor with the test that measures what others notice."""

import asyncio
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from tests.support.stack import ROOT

# Replaced in each request by another number.
NUMBER = "12345678"
_numbers = itertools.count(10_000_000)


@dataclass(frozen=True)
class Flood:
    """Connections that do the same. `way` is `ask` (one request after the other), `trickle` (the
    request, then a byte now and then) or `unread` (many requests, of which no answer is read)."""

    port: int
    request: str
    connections: int
    way: str = "ask"


@contextmanager
def flood(floods: Sequence[Flood]) -> Iterator[None]:
    """Flood from when all connections have sent something until the end of the block. Fails if
    connections ask and none is answered."""
    told = json.dumps([asdict(one) for one in floods])
    program = [sys.executable, "-m", "tests.support.flood", told]
    with subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == "here\n"
            yield
        finally:
            process.stdin.close()
            answers = int(process.stdout.read() or -1)
            process.wait(30)
    assert answers > 0 or all(one.way != "ask" for one in floods), answers


class Flooding:
    def __init__(self) -> None:
        self.sent = 0
        self.answers = 0

    async def go_on(self, flood: Flood) -> None:
        is_first = True
        while True:
            with suppress(OSError, EOFError, asyncio.LimitOverrunError, ValueError):
                reader, writer = await connect(flood.port, unread=flood.way == "unread")
                try:
                    await self._send(flood, writer)
                    self.sent += is_first
                    is_first = False
                    while True:
                        await self._go_on(flood, reader, writer)
                finally:
                    writer.close()
            await asyncio.sleep(0.05)

    async def _go_on(
        self, flood: Flood, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if flood.way == "trickle":
            await asyncio.sleep(0.5)
            writer.write(b" ")
            await writer.drain()
            if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]
                raise EOFError
            return
        if flood.way == "ask":
            head = await reader.readuntil(b"\r\n\r\n")
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(size))
            self.answers += 1
        await self._send(flood, writer)

    async def _send(self, flood: Flood, writer: asyncio.StreamWriter) -> None:
        writer.write(flood.request.replace(NUMBER, str(next(_numbers))).encode())
        await writer.drain()


async def connect(port: int, *, unread: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """`unread`: the kernel buffers as little as it can of what arrives."""
    connection = socket.socket()
    connection.setblocking(False)
    if unread:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    # The reader stops to read from the socket at twice its limit.
    return await asyncio.open_connection(sock=connection, limit=1 if unread else 1 << 20)


async def main(floods: Sequence[Flood]) -> None:
    flooding = Flooding()
    tasks = [
        asyncio.create_task(flooding.go_on(one)) for one in floods for _ in range(one.connections)
    ]
    while flooding.sent < len(tasks):
        await asyncio.sleep(0.01)
    print("here", flush=True)
    before = flooding.answers
    await asyncio.to_thread(sys.stdin.read)
    print(flooding.answers - before, flush=True)


if __name__ == "__main__":
    asyncio.run(main([Flood(**one) for one in json.loads(sys.argv[1])]))
