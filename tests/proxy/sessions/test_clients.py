"""Real clients reach their endpoint: with and without TLS, by host name and by option, with every
method of authentication."""

import asyncio
import os
import ssl
import string
import subprocess
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.proxy.conftest import ENDPOINT, PASSWORDS, create_role, verifiers_of
from tests.proxy.running_proxy import RunningProxy, plain
from tests.support.bare_postgres import BarePostgres

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
WAYS = {
    "plain": plain(ENDPOINT),
    "tls": {},
    "tls, endpoint by option": {"host": "127.0.0.1", "options": f"endpoint={ENDPOINT}"},
    "tls, bound channel": {"channel_binding": "require"},
    "tls, no bound channel": {"channel_binding": "disable"},
    "direct tls": {"sslnegotiation": "direct", "channel_binding": "require"},
    "tls if there is": {"sslmode": "prefer"},
    "protocol 3.2": {"min_protocol_version": "3.2", "max_protocol_version": "3.2"},
    "newest protocol": {"max_protocol_version": "latest"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_psycopg(proxy: RunningProxy, way: dict[str, str]) -> None:
    with proxy.connect(ENDPOINT, **ALICE, **way) as connection:
        assert connection.execute("SELECT current_user, 6 * 7").fetchone() == ("alice", 42)


@pytest.mark.parametrize("tls", [False, True])
def test_asyncpg(proxy: RunningProxy, tls: bool) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def ask() -> Any:
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=proxy.port,
            database="postgres",
            ssl=context if tls else False,
            server_settings={"options": f"endpoint={ENDPOINT}"},
            **ALICE,
        )
        try:
            return await connection.fetch("SELECT $1::int + n FROM generate_series(1, 3) n", 10)
        finally:
            await connection.close()

    assert [row[0] for row in asyncio.run(ask())] == [11, 12, 13]


@pytest.mark.parametrize(
    "parameters", ["sslmode=require channel_binding=require", "sslmode=prefer"]
)
def test_psql(proxy: RunningProxy, parameters: str) -> None:
    connection = f"host={ENDPOINT}.localhost hostaddr=127.0.0.1 port={proxy.port} user=alice"
    answer = subprocess.run(
        ["psql", f"{connection} dbname=postgres {parameters}", "-Atc", "SELECT current_user"],
        env={**os.environ, "PGPASSWORD": PASSWORDS["alice"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.stdout, answer.stderr) == ("alice\n", "")


def test_start_up_parameters_arrive(proxy: RunningProxy) -> None:
    options = f"endpoint={ENDPOINT} -c geqo=off"
    with proxy.connect(ENDPOINT, **ALICE, options=options, application_name="shop") as connection:
        shown = [
            connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("geqo", "application_name")
        ]
    assert shown == [("off",), ("shop",)]


def test_a_password_of_every_printable_character(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    password = string.printable.strip() + "äß€😀"
    create_role(postgres, "printable", password)
    proxy.directory.endpoints[ENDPOINT].verifiers = verifiers_of(postgres)
    with proxy.connect(ENDPOINT, user="printable", password=password) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("printable",)


@pytest.mark.parametrize(
    "name", ['quo"ted', "two words", "Grüße", "a,b=c", "semi;colon--", "back\\slash"]
)
def test_names_that_need_quoting(proxy: RunningProxy, postgres: BarePostgres, name: str) -> None:
    create_role(postgres, name, "secret")
    quoted = '"' + name.replace('"', '""') + '"'
    postgres.execute(f"CREATE DATABASE {quoted}")
    proxy.directory.endpoints[ENDPOINT].verifiers = verifiers_of(postgres)
    with proxy.connect(ENDPOINT, user=name, password="secret", dbname=name) as connection:
        row = connection.execute("SELECT current_user, current_database()").fetchone()
    assert row == (name, name)


def test_an_error_of_the_compute_reaches_the_client(proxy: RunningProxy) -> None:
    with pytest.raises(psycopg.OperationalError, match='database "none" does not exist'):
        proxy.connect(ENDPOINT, **ALICE, dbname="none")


def test_notifications_arrive_while_the_client_is_idle(proxy: RunningProxy) -> None:
    with (
        proxy.connect(ENDPOINT, **ALICE) as listener,
        proxy.connect(ENDPOINT, **ALICE) as speaker,
    ):
        listener.execute("LISTEN news")
        speaker.execute("NOTIFY news, 'hello'")
        notification = next(listener.notifies(timeout=10))
    assert notification.payload == "hello"
