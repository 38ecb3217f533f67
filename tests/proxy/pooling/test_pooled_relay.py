"""What happens to a pooled client whose pooler ends, depending on the messages before."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from controlplane.proxy.directory.interface import ComputeAddress, Tally
from controlplane.proxy.pooling.conversation import Conversation
from controlplane.proxy.pooling.pooled_relay import PooledRelay
from controlplane.proxy.pooling.statement_refusal import StatementRefusal
from controlplane.proxy.relaying.compute import ComputeConnection
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import AdministratorShutdown
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey
from tests.proxy.pooling.test_conversation import (
    EXECUTE,
    SYNC,
    TERMINATE,
    complete,
    parse,
    query,
    ready,
)


def poolers_error(text: str) -> bytes:
    return messages.error_response(severity="FATAL", sqlstate="08P01", text=text)


NO_SERVER = poolers_error("server login has been failing, try again later (server_login_retry)")
CRASHED = poolers_error("server conn crashed?")
OURS = AdministratorShutdown().packet()


class Stage:
    """A relay whose client and pooler are both played by the test."""

    def __init__(self, readiness: Readiness, conversation: Conversation) -> None:
        self.client, client = socket.socketpair()
        self.pooler, pooler = socket.socketpair()
        for ours in (self.client, self.pooler):
            ours.setblocking(False)
        self.channel = Channel(client, readiness)
        self.parked = 0
        self.relay = PooledRelay(
            self.channel,
            ComputeConnection(
                Channel(pooler, readiness),
                ComputeAddress(Path()),
                CancelKey(0, b""),
                greeting_before_key=b"",
                greeting_after_key=b"",
            ),
            conversation,
            refusal=StatementRefusal(refuses_names=False),
            readiness=readiness,
            sent=Tally(),
            parked=self.park,
        )
        self.relay.start(to_client=b"", to_pooler=b"")

    def park(self) -> None:
        self.parked += 1

    async def arrives(self, at: socket.socket, data: bytes) -> None:
        loop, got = asyncio.get_running_loop(), b""
        async with asyncio.timeout(10):
            while len(got) < len(data):
                chunk = await loop.sock_recv(at, 65536)
                assert chunk, f"it ended after {got!r}"
                got += chunk
        assert got == data

    async def end(self) -> bytes | None:
        async with asyncio.timeout(10):
            return await self.relay.done

    def close(self) -> None:
        self.relay.close()
        self.channel.close()
        self.client.close()
        self.pooler.close()


Play = Callable[[Stage], Awaitable[None]]


def played(play: Play, conversation: Conversation | None = None) -> None:
    async def run() -> None:
        readiness = Readiness(asyncio.get_running_loop())
        stage = Stage(readiness, conversation or Conversation())
        try:
            await play(stage)
        finally:
            stage.close()
            readiness.close()

    uvloop.run(run())


async def transact(stage: Stage) -> None:
    stage.client.send(query())
    await stage.arrives(stage.pooler, query())
    stage.pooler.send(complete() + ready())
    await stage.arrives(stage.client, complete() + ready())


def test_an_idle_client_is_parked() -> None:
    async def play(stage: Stage) -> None:
        await transact(stage)
        stage.pooler.close()
        assert await stage.end() == b""
        assert stage.parked == 1

    played(play)


def test_messages_that_the_pooler_has_not_read_are_repeated() -> None:
    async def play(stage: Stage) -> None:
        await transact(stage)
        # Nothing is read there any more, so its end is not noticed yet.
        stage.pooler.shutdown(socket.SHUT_RD)
        stage.client.send(query(b"SELECT 2"))
        await asyncio.sleep(0.05)
        stage.pooler.close()
        assert await stage.end() == query(b"SELECT 2")

    played(play)


def test_messages_that_may_have_been_executed_end_with_an_error() -> None:
    async def play(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        stage.pooler.close()
        assert await stage.end() is None
        await stage.arrives(stage.client, OURS)

    played(play)


def test_the_error_of_a_pooler_without_a_server_is_suppressed_once() -> None:
    conversation = Conversation()

    async def ask(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        stage.pooler.send(NO_SERVER[:9])
        await asyncio.sleep(0.02)
        stage.pooler.send(NO_SERVER[9:])

    async def first(stage: Stage) -> None:
        await ask(stage)
        assert await stage.end() == query()

    async def second(stage: Stage) -> None:
        await ask(stage)
        await stage.arrives(stage.client, NO_SERVER)
        stage.pooler.close()
        assert await stage.end() is None

    played(first, conversation)
    conversation.begin()
    played(second, conversation)


@pytest.mark.parametrize(
    ("sent", "goes_on"), [(query(), True), (query() * 2, False), (parse() + EXECUTE + SYNC, False)]
)
def test_a_backend_that_died_while_idle_has_not_begun_a_query(sent: bytes, goes_on: bool) -> None:
    died = messages.message(
        b"E",
        b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0"
        b"Fbe-secure.c\0L212\0Rsecure_read\0\0",
    )

    async def play(stage: Stage) -> None:
        stage.client.send(sent)
        await stage.arrives(stage.pooler, sent)
        stage.pooler.send(died + CRASHED)
        stage.pooler.close()
        assert await stage.end() == (sent if goes_on else None)

    played(play)


@pytest.mark.parametrize("said", [CRASHED, poolers_error("client_idle_timeout")])
def test_other_errors_are_passed_on_and_end_the_connection(said: bytes) -> None:
    async def play(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        stage.pooler.send(said)
        stage.pooler.close()
        assert await stage.end() is None
        await stage.arrives(stage.client, said)
        assert stage.client.recv(1) == b""

    played(play)


@pytest.mark.parametrize("first", [3, 100, 9000, 20_000])
def test_a_first_error_of_any_length_is_passed_on_whole(first: int) -> None:
    """`first` is the number of its bytes that arrive first."""
    error = messages.error_response(severity="ERROR", sqlstate="22P02", text="x" * 9000)

    async def play(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        answer = error + ready()
        stage.pooler.send(answer[:first])
        await asyncio.sleep(0)
        stage.pooler.send(answer[first:])
        await stage.arrives(stage.client, answer)
        await transact(stage)

    played(play)


def test_a_client_that_has_left_is_not_parked() -> None:
    async def play(stage: Stage) -> None:
        stage.client.send(TERMINATE)
        await stage.arrives(stage.pooler, TERMINATE)
        stage.pooler.close()
        assert await stage.end() is None

    played(play)


def test_an_interruption_is_sent_only_between_messages() -> None:
    async def play(stage: Stage) -> None:
        await transact(stage)
        stage.relay.interrupt(OURS)
        await stage.arrives(stage.client, OURS)

    async def within(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        stage.pooler.send(complete()[:7])
        await stage.arrives(stage.client, complete()[:7])
        stage.relay.interrupt(OURS)
        assert stage.client.recv(1) == b""

    played(play)
    played(within)


def test_parking_waits_for_the_answer() -> None:
    async def play(stage: Stage) -> None:
        stage.client.send(query())
        await stage.arrives(stage.pooler, query())
        stage.relay.park("it is suspended")
        assert not stage.relay.done.done()
        stage.pooler.send(complete() + ready())
        await stage.arrives(stage.client, complete() + ready())
        assert await stage.end() == b""

    played(play)
