"""Sends as many requests as a server answers, at little cost of its own, so that the server is
measured."""

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import uvloop

LONGEST = 1 << 23


def requests_per_second(
    url: str, headers: Mapping[str, str], *, connections: int, seconds: float
) -> float:
    """Return the requests per second answered with 200, over so many open connections."""
    return uvloop.run(_load(url, headers, connections, seconds))


async def _load(url: str, headers: Mapping[str, str], connections: int, seconds: float) -> float:
    address = urlsplit(url)
    target = address.path + (f"?{address.query}" if address.query else "")
    lines = [f"GET {target} HTTP/1.1", f"Host: {address.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode()
    assert address.hostname
    opened = [
        await asyncio.open_connection(address.hostname, address.port, limit=LONGEST)
        for _ in range(connections)
    ]
    began = time.perf_counter()
    until = began + seconds
    counts = await asyncio.gather(*(_ask(*pair, request, until) for pair in opened))
    took = time.perf_counter() - began
    for _, writer in opened:
        writer.close()
    return sum(counts) / took


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, until: float
) -> int:
    count = 0
    while time.perf_counter() < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200 "), head
        _, found, rest = head.partition(b"content-length: ")
        if found:
            await reader.readexactly(int(rest.partition(b"\r\n")[0]))
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        count += 1
    return count
