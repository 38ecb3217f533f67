"""Two hosts in one region, as real processes that share the metadata: each project lives on its
host, and gives its log to nobody else."""

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from controlplane.compute.host.listener_socket import SOCKET
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.fleet.messages import Link, MoveRefused
from controlplane.fleet.receivers import log_carrier
from controlplane.models.log_receiver import new_receiver_id
from controlplane.proxy.peers.header import ACCEPTED, Kind, PassedOn
from controlplane.proxy.wire.peer_tls import load_or_create_peer_certificate
from controlplane.proxy.wire.startup import PEER_REQUEST
from tests.connections.roles.test_logical_replication import conninfo, receive
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.client import Client
from tests.support.place import Place
from tests.support.second_host import ADDRESS, NAME, SecondHost, placing_on, variables
from tests.support.stack import ROOT, Stack
from tests.support.waiting import wait_for

SLEEP = "SELECT pg_sleep(63)"


def test_each_project_lives_on_its_host(stack: Stack, second: SecondHost, place: Place) -> None:
    client = place.client
    with placing_on(stack, NAME):
        there = Place.create(second.stack, client)
    endpoint = there.client.get(there.endpoint_path())["endpoint"]
    # The address of the region, whichever host serves the endpoint.
    assert endpoint["host"] == f"{there.endpoint_id}.localhost"
    assert endpoint["proxy_host"] == "localhost"
    uri = there.created["connection_uris"][0]["connection_uri"]
    assert f"@localhost:{stack.proxy_port}/" in uri
    assert there.is_served(host=f"{there.endpoint_id}.{ADDRESS}")
    assert second.stack.data_dir(there.branch_id).is_dir()
    assert not stack.data_dir(there.branch_id).exists()
    assert place.is_served()
    _served_by_the_other_proxy(there, port=stack.proxy_port, address="localhost")
    _served_by_the_other_proxy(place, port=second.stack.proxy_port, address=ADDRESS)
    details = requests.get(stack.api_url.replace("/api/v2", "/healthz/details"), timeout=10)
    assert [host["id"] for host in details.json()["hosts"]] == ["local", NAME]
    assert [region["id"] for region in details.json()["regions"]] == ["local"]
    client.delete(there.path)
    data = second.stack.data_dir(there.branch_id)
    wait_for(lambda: not data.exists(), "the removal of the data")
    assert place.is_served()


def test_placing_on_one_host_moves_nothing_to_it(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    with placing_on(stack, NAME):
        there = Place.create(second.stack, place.client)
        _empty_if_drained(stack, "local")
    assert second.stack.data_dir(there.branch_id).is_dir()
    operations = place.client.get(f"{place.path}/operations")["operations"]
    assert "move_project" not in [one["action"] for one in operations]
    there.client.delete(there.path)


def _empty_if_drained(stack: Stack, host: str) -> None:
    """Do what that host's worker does once a minute."""
    code = (
        "from controlplane.models import Host;"
        "from controlplane.fleet.moves import go_on_emptying;"
        f"go_on_emptying(Host.objects.get(id={host!r}))"
    )
    subprocess.run(
        [sys.executable, "manage.py", "shell", "--settings", "controlplane.settings", "-c", code],
        cwd=ROOT,
        env=variables(stack, stack.state_dir),
        check=True,
        timeout=60,
    )


def _served_by_the_other_proxy(place: Place, *, port: int, address: str) -> None:
    """Under the region's host name and that of the proxy's host, with all that its own proxy
    offers."""
    assert place.is_served(port=port)
    assert place.is_served(port=port, channel_binding="require")
    assert place.is_served(port=port, host=f"{place.endpoint_id}.{address}")
    with place.connect(port=port, pooled=True) as pooled:
        place.suspend()
        # The second proxy has parked the client, and wakes the compute for its next statement.
        assert pooled.execute("SELECT 1").fetchone() == (1,)
    place.suspend()
    assert place.is_served(port=port, tls=False)
    assert place.state() == "active"
    _cancels_its_query(place, port=port)
    wrong = str(place.refusal(port=port, password="wrong"))
    assert "password authentication failed" in wrong


def _cancels_its_query(place: Place, *, port: int) -> None:
    """The cancel request, a connection of its own, may arrive at another process of the proxy."""
    with place.connect(port=port) as connection, ThreadPoolExecutor() as pool:
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: _runs(place, SLEEP), "the query to run")
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(60)


def _runs(place: Place, statement: str) -> bool:
    with place.stack.compute(place.endpoint_id) as platform:
        running = "SELECT FROM pg_stat_activity WHERE query = %s AND state = 'active'"
        return platform.execute(running, [statement]).rowcount > 0


def test_replication_passes_through_another_hosts_proxy(
    stack: Stack, alice: Client, second: SecondHost
) -> None:
    with placing_on(stack, NAME):
        settings = {"enable_logical_replication": True}
        created = Place.create(second.stack, alice, settings=settings).created
    # As clients reach it by the first host's proxy.
    place = Place(stack, alice, created)
    wait_for(place.is_served, "the first host's proxy to reach the second host")
    with place.connect() as connection:
        connection.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
        connection.execute("INSERT INTO stock VALUES (1, 'perch')")
        connection.execute("CREATE PUBLICATION stock FOR TABLE stock")
    _streams(place)
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as subscriber:
        subscriber.start()
        _is_followed(place, subscriber)
    alice.delete(place.path)


def _streams(place: Place) -> None:
    """A walsender answers, and streams what is written."""
    with psycopg.connect(**place.parameters(replication="database"), autocommit=True) as sender:
        (system, *_) = sender.execute("IDENTIFY_SYSTEM").fetchone() or ("",)
        assert place.query("SELECT system_identifier FROM pg_control_system()") == (int(system),)
    slot = "across"
    made = receive(place, "--slot", slot, "--plugin", "test_decoding", "--create-slot")
    assert made.returncode == 0, made.stderr
    place.query("INSERT INTO stock VALUES (2, 'roach') RETURNING 1")
    end = place.query("SELECT pg_current_wal_lsn()")
    arguments = ("--slot", slot, "--start", "--no-loop", "--endpos", end[0], "--file", "-")
    got = receive(place, *arguments)
    assert got.returncode == 0, got.stderr
    assert "'roach'" in got.stdout
    place.query(f"SELECT pg_drop_replication_slot('{slot}')")


def _is_followed(place: Place, subscriber: BarePostgres) -> None:
    """By a subscriber, also after the endpoint has slept."""

    def items() -> list[Any]:
        return [item for (item,) in subscriber.execute("SELECT item FROM stock ORDER BY id")]

    subscriber.execute("CREATE TABLE stock (id int PRIMARY KEY, item text)")
    subscriber.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{conninfo(place)}' PUBLICATION stock"
    )
    try:
        wait_for(lambda: items() == ["perch", "roach"], "the existing rows", timeout=40)
        place.query("INSERT INTO stock VALUES (3, 'pike') RETURNING 1")
        wait_for(lambda: len(items()) == 3, "a row to follow", timeout=40)
        place.suspend()
        wait_for(lambda: place.state() == "active", "the subscriber to wake it", timeout=60)
        place.query("INSERT INTO stock VALUES (4, 'bream') RETURNING 1")
        wait_for(lambda: len(items()) == 4, "a row after the wake", timeout=60)
    finally:
        subscriber.execute("DROP SUBSCRIPTION stock")


FIRST = "local"


@contextmanager
def passed_on(stack: Stack, second: SecondHost, header: PassedOn) -> Iterator[Path]:
    """A directory with a socket that leads from the second host to the first, as `header` says."""
    with stack.database() as database:
        found: Any = database.execute(
            "SELECT peer_port, peer_certificate FROM controlplane_host WHERE id = %s", [FIRST]
        )
        port, trusted = found.fetchone()
    own = load_or_create_peer_certificate(second.stack.state_dir / "tls")
    directory = second.stack.state_dir / "carried"
    directory.mkdir(exist_ok=True)
    (directory / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / SOCKET))
        listener.listen(1)
        request = {
            "address": "localhost",
            "port": port,
            "certificate": own.certificate,
            "key": own.key,
            "trusted": trusted,
            "sent": [base64.b64encode(one).decode() for one in (PEER_REQUEST, header.encoded())],
            "accepted": base64.b64encode(ACCEPTED).decode(),
            "listener": listener.fileno(),
        }
        with subprocess.Popen(
            [sys.executable, "-I", log_carrier.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        ) as carrier:
            assert carrier.stdin is not None
            assert carrier.stdout is not None
            try:
                carrier.stdin.write(json.dumps(request).encode())
                carrier.stdin.close()
                assert carrier.stdout.readline() == b"ready\n"
                yield directory
            finally:
                carrier.kill()


def receiver(stack: Stack, place: Place, host: str) -> str:
    """Let the host be to receive the log of the project's branch. Returns the receiver's id."""
    receiver_id = new_receiver_id()
    with stack.database() as database:
        database.execute(
            "INSERT INTO controlplane_logreceiver (id, branch_id, host_id, created_at)"
            " VALUES (%s, %s, %s, now())",
            [receiver_id, place.branch_id, host],
        )
    return receiver_id


def identified(stack: Stack, second: SecondHost, receiver_id: str) -> Any:
    """What the compute says to the second host, which asks it for its log."""
    header = PassedOn(kind=Kind.LOG, client_address="127.0.0.1", receiver=receiver_id)
    with (
        passed_on(stack, second, header) as directory,
        psycopg.connect(
            f"host={directory} user={PLATFORM_ROLE} replication=true sslmode=disable",
            autocommit=True,
        ) as connection,
    ):
        return connection.pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 1)


def test_a_host_gets_only_the_log_that_it_is_to_receive(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    assert identified(stack, second, receiver(stack, place, NAME)) == b"1"
    another = receiver(stack, place, FIRST)
    with pytest.raises(psycopg.OperationalError):
        identified(stack, second, another)


def test_what_was_received_is_given_to_no_host_but_the_projects(
    stack: Stack, place: Place, second: SecondHost
) -> None:
    receiver_id = receiver(stack, place, FIRST)
    log = stack.state_dir / "branches" / receiver_id / "log"
    log.mkdir(parents=True)
    (log / "000000010000000000000001").write_bytes(b"log")
    header = PassedOn(kind=Kind.MOVE, client_address="127.0.0.1")

    def asked() -> dict[str, Any]:
        with passed_on(stack, second, header) as directory:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(str(directory / SOCKET))
            with closing(Link(connection)) as link:
                link.send(received=receiver_id)
                return link.receive()

    with pytest.raises(MoveRefused, match="a branch that lives on yours"):
        asked()
    with stack.database() as database:
        to = "UPDATE controlplane_project SET host_id = %s WHERE id = %s"
        # Another host restores it.
        database.execute(to, [NAME, place.id])
        try:
            assert asked() == {"segment": "000000010000000000000001"}
        finally:
            database.execute(to, [FIRST, place.id])
