"""Computes can connect to the Internet and to Perch's own proxy, but not to the host and its
network. A project can block all connections of its computes."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client as DjangoClient

from controlplane.compute.data import outbound
from controlplane.compute.data.outbound import (
    OutboundNotBlocked,
    complaint,
    hold_compute,
    hold_outbound,
    release_outbound,
)
from controlplane.models import Host
from tests.selection import first_of
from tests.support.project import Project
from tests.support.waiting import wait_for

# The kernel's error numbers for IPv4 and for IPv6.
REFUSED = {errno.EHOSTUNREACH, errno.EACCES}
OURS, NEWER, THEIRS = 45720, 45721, 45722
CONNECT = """
import os, socket, sys
number, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setresuid(number, number, number)
with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
    client.settimeout(5)
    print(client.connect_ex((address, port)))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can filter")


def error_of(number: int, address: str, port: int) -> int:
    """Return the error number of a connection made by a process of the account; 0 if it
    succeeds."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CONNECT, str(number), address, str(port)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@contextmanager
def service(address: str = "127.0.0.1") -> Iterator[int]:
    """Listen as a service of the host. Yields its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.create_server((address, 0), family=family)) as listener:
        yield listener.getsockname()[1]


class TestRules:
    @pytest.fixture(autouse=True)
    def host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(outbound, "TABLES", tmp_path / "tables")
        monkeypatch.setattr(settings, "COMPUTE_UIDS", "45720-45729")
        self.use(self.new_state("ours", tmp_path, OURS), monkeypatch)
        hold_outbound(list)
        if complaint():
            pytest.skip(complaint())
        yield
        for state in tmp_path.iterdir():
            if (state / "branches").exists():
                self.use(state, monkeypatch)
                release_outbound()

    def use(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settings, "STATE_DIR", state)
        monkeypatch.setattr(outbound, "_state", outbound._State())

    @staticmethod
    def new_state(name: str, tmp_path: Path, *numbers: int) -> Path:
        for number in numbers:
            place = tmp_path / name / "branches" / f"br-of-{number}"
            place.mkdir(parents=True)
            os.chown(place, 0, number)
        return tmp_path / name

    @pytest.mark.parametrize("address", first_of(["127.9.9.9", "127.0.0.1", "::1"]))
    def test_the_hosts_services_cannot_be_reached(self, address: str) -> None:
        with service(address) as port:
            assert error_of(OURS, address, port) in REFUSED
            assert error_of(THEIRS, address, port) == 0, "it is nobody's account here"
            assert error_of(0, address, port) == 0

    @pytest.mark.parametrize(
        "address", first_of(["169.254.169.254", "10.255.255.1", "fe80::1", "fd00::1"], count=2)
    )
    def test_private_networks_cannot_be_reached(self, address: str) -> None:
        no_way_there = {errno.ENETUNREACH, errno.EINVAL}
        assert error_of(OURS, address, 80) in REFUSED | no_way_there

    def test_the_proxy_can_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with service() as port:
            monkeypatch.setattr(settings, "PROXY_PORT", port)
            outbound._state.computes = None
            hold_outbound(list)
            assert error_of(OURS, "127.0.0.1", port) == 0

    @pytest.mark.parametrize(
        ("given", "reached"),
        [
            ("127.0.0.1", {"127.0.0.1"}),
            ("127.9.9.9", {"127.9.9.9"}),
            ("0.0.0.0", {"127.0.0.1", "127.9.9.9"}),
            ("::", {"::1"}),
            ("localhost", {"127.0.0.1", "::1"}),
            ("", set()),
        ],
    )
    def test_its_port_is_reached_only_where_the_proxy_listens(
        self, given: str, reached: set[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = {found[4][0] for found in socket.getaddrinfo("localhost", None)}
        with service() as port:
            monkeypatch.setattr(settings, "PROXY_HOST", given)
            monkeypatch.setattr(settings, "PROXY_PORT", port)
            outbound._state.computes = None
            hold_outbound(list)
            errors = {one: error_of(OURS, one, port) for one in ("127.0.0.1", "127.9.9.9", "::1")}
        assert complaint() == ""
        # Where nothing listens, a connection that the rules let through is refused by the host.
        let_through = {one for one, error in errors.items() if error in {0, errno.ECONNREFUSED}}
        assert let_through == (reached & known if given == "localhost" else reached)

    def test_addresses_that_the_operator_allows_can_be_reached(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        networks = [ip_network("127.9.0.0/16"), ip_network("fd00::/8")]
        monkeypatch.setattr(settings, "COMPUTE_ALLOWED_NETWORKS", networks)
        outbound._state.computes = None
        hold_outbound(list)
        with service("127.9.9.9") as allowed, service() as port:
            assert error_of(OURS, "127.9.9.9", allowed) == 0
            assert error_of(OURS, "127.0.0.1", port) == errno.EHOSTUNREACH

    def test_a_blocked_branch_can_reach_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with service() as port:
            monkeypatch.setattr(settings, "PROXY_PORT", port)
            hold_outbound(lambda: [f"br-of-{OURS}"])
            assert error_of(OURS, "127.0.0.1", port) == errno.EHOSTUNREACH
            assert error_of(OURS, "192.0.2.1", 80) == errno.EHOSTUNREACH
            hold_outbound(list)
            assert error_of(OURS, "127.0.0.1", port) == 0

    def test_a_new_branch_is_blocked_before_its_first_start(self, tmp_path: Path) -> None:
        self.new_state("ours", tmp_path, NEWER)
        with service() as port:
            assert error_of(NEWER, "127.0.0.1", port) == 0
            hold_compute(f"br-of-{NEWER}", closed=True)
            assert error_of(NEWER, "127.0.0.1", port) == errno.EHOSTUNREACH
            assert outbound._state.computes == frozenset({OURS, NEWER})
            assert outbound._state.closed == frozenset({NEWER})

    def test_no_branch_is_closed_while_it_is_read_which_are(self) -> None:
        def read() -> list[str]:
            assert outbound._lock.locked()
            return []

        hold_outbound(read)

    def test_a_branch_that_is_being_made_can_reach_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = self.new_state("ours", tmp_path, NEWER) / "branches" / f"br-of-{NEWER}"
        place.rename(place.with_name(f".{place.name}"))
        with service() as port:
            monkeypatch.setattr(settings, "PROXY_PORT", port)
            hold_outbound(list)
            assert error_of(OURS, "127.0.0.1", port) == 0
            assert error_of(NEWER, "127.0.0.1", port) == errno.EHOSTUNREACH
            assert outbound._state.closed == frozenset({NEWER})

    def test_a_table_that_was_flushed_is_written_again(self) -> None:
        with service() as port:
            outbound._nft("delete", "table", "inet", outbound._table())
            assert error_of(OURS, "127.0.0.1", port) == 0
            hold_outbound(list)
            assert error_of(OURS, "127.0.0.1", port) == errno.EHOSTUNREACH

    def test_two_services_leave_each_others_tables_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.use(self.new_state("theirs", tmp_path, THEIRS), monkeypatch)
        hold_outbound(list)
        with service() as port:
            assert error_of(OURS, "127.0.0.1", port) == errno.EHOSTUNREACH
            assert error_of(THEIRS, "127.0.0.1", port) == errno.EHOSTUNREACH
            release_outbound()
            assert error_of(OURS, "127.0.0.1", port) == errno.EHOSTUNREACH
            assert error_of(THEIRS, "127.0.0.1", port) == 0

    def test_a_table_is_removed_after_its_state_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = outbound._table()
        (tmp_path / "ours").rename(tmp_path / "elsewhere")
        self.use(self.new_state("theirs", tmp_path, THEIRS), monkeypatch)
        hold_outbound(list)
        assert outbound._nft("list", "table", "inet", table).returncode != 0

    def test_a_host_that_cannot_block_refuses_to_start_a_blocked_branch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as bare:
            bare.setattr(outbound, "_program", lambda: None)
            hold_outbound(list)
            assert "nftables is not installed" in complaint()
            hold_compute(f"br-of-{OURS}", closed=False)
            with pytest.raises(OutboundNotBlocked, match="block_outbound_connections"):
                hold_compute(f"br-of-{OURS}", closed=True)


def test_a_host_that_cannot_block_refuses_the_setting(api: DjangoClient, host: Host) -> None:
    def ask(blocks: bool) -> int:
        body = {"project": {"settings": {"block_outbound_connections": blocks}}}
        answer = api.post("/api/v2/projects", json.dumps(body), content_type="application/json")
        return answer.status_code

    Host.objects.filter(id=host.id).update(outbound_unfiltered="nftables is not installed")
    assert ask(True) == 422
    assert ask(False) == 201
    Host.objects.filter(id=host.id).update(outbound_unfiltered="")
    assert ask(True) == 201


@pytest.mark.thorough
def test_sql_reaches_the_proxy_until_the_project_blocks_its_computes(project: Project) -> None:
    with project.stack.database() as connection:
        row = connection.execute("SELECT outbound_unfiltered FROM controlplane_host").fetchone()
    if row != ("",):
        pytest.skip(str(row))
    project.sql("CREATE EXTENSION IF NOT EXISTS dblink")

    def refusal(port: int) -> str:
        where = f"host=127.0.0.1 port={port} user=u password=p dbname=d sslmode=disable"
        with project.compute() as session, pytest.raises(Exception) as refused:
            session.execute("SELECT dblink_connect(%s)", [where])
        return str(refused.value)

    says: Callable[[], str] = lambda: refusal(project.stack.proxy_port)  # noqa: E731
    with service() as port:
        assert "No route to host" in refusal(port)
    assert "No route to host" not in says()
    project.client.patch(
        project.path, {"project": {"settings": {"block_outbound_connections": True}}}
    )
    wait_for(lambda: "No route to host" in says(), "its computes to be closed", timeout=20)
    project.client.patch(
        project.path, {"project": {"settings": {"block_outbound_connections": False}}}
    )
    wait_for(lambda: "No route to host" not in says(), "them to be open", timeout=20)
