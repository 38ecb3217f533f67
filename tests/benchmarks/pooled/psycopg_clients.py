"""Clients of psycopg for `tests.benchmarks.sleep`, which says who they are by `name=json`; they
stop when their standard input ends, and say how they fared."""

import asyncio
import json
import random
import sys
import time
from typing import Any

import psycopg

GIVEN = {name: json.loads(value) for name, _, value in (one.partition("=") for one in sys.argv[1:])}
errors: list[str] = []
transactions = 0
slowest = 0.0


async def work(client: Any, stopped: asyncio.Event) -> None:
    global transactions, slowest
    while not stopped.is_set():
        began = time.perf_counter()
        number = random.randrange(1000)
        async with client.transaction():
            cursor = await client.execute("SELECT %s::int + 1", [number])
            assert await cursor.fetchone() == (number + 1,)
        transactions += 1
        slowest = max(slowest, (time.perf_counter() - began) * 1000)
        try:
            await asyncio.wait_for(stopped.wait(), random.uniform(2, 6))
        except TimeoutError:
            continue


async def connect() -> Any:
    names = {"host": "host", "port": "port", "user": "user", "password": "password"}
    return await psycopg.AsyncConnection.connect(
        **{name: GIVEN[given] for name, given in names.items()},
        dbname=GIVEN["database"],
        options=GIVEN["options"],
        sslmode="disable",
        autocommit=True,
        prepare_threshold=0 if GIVEN["prepares"] else None,
    )


async def keep_working(stopped: asyncio.Event, client: Any) -> None:
    while not stopped.is_set():
        try:
            await work(client, stopped)
        except psycopg.Error as error:
            errors.append(f"{error.sqlstate} {error}")
            client = await connect()
    await client.close()


async def main() -> None:
    stopped = asyncio.Event()
    clients = [await connect() for _ in range(GIVEN["clients"])]
    print("connected", flush=True)
    working = [asyncio.create_task(keep_working(stopped, client)) for client in clients]
    await asyncio.to_thread(sys.stdin.read)
    stopped.set()
    await asyncio.gather(*working)
    print(json.dumps({"transactions": transactions, "errors": errors, "slowest_ms": slowest}))


asyncio.run(main())
