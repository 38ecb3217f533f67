"""A compute that was taken over can neither take ports of the host nor leave anything behind.

The computes here are started in this process, without the service.
"""

import os
import platform
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg.sql
import pytest

from controlplane.compute import compute
from controlplane.compute.host.accounts import account_of, running_as
from controlplane.compute.host.confinement import can_deny_ports, can_refuse_calls
from controlplane.compute.processes.account_processes import end_stray_accounts, owners_of_objects
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.settings.configuration import ComputeSpec
from tests.support.own_compute import own_branch

BRANCH, ENDPOINT = "br-taken-heron-123456", "ep-taken-heron-123456"
SPEC = ComputeSpec(ENDPOINT, BRANCH, min_cu=0.25, max_cu=0.25, pg_settings={"fsync": "off"})
# Prints what it could bind. MPTCP (262) and SMC (256) take the ports of TCP, too.
BINDS = """
use Socket qw(:all);
my %at = (AF_INET() => pack_sockaddr_in(0, INADDR_LOOPBACK),
    AF_INET6() => pack_sockaddr_in6(0, IN6ADDR_LOOPBACK));
for my $family (AF_INET, AF_INET6) {
    for my $protocol (0, 6, 256, 262) {
        print "tcp\\n" if socket(ONE, $family, SOCK_STREAM, $protocol) && bind(ONE, $at{$family});
    }
}
print "smc\\n" if socket(ONE, 43, SOCK_STREAM, 0);
print "udp\\n" if socket(ONE, AF_INET, SOCK_DGRAM, 0) && bind(ONE, $at{AF_INET()});
"""
# Leaves shared memory behind, a segment and files, and tries to leave queues and semaphores.
LEAVES = """
print "shm\\n" if defined shmget(0, 4096, 0600);
print "msg\\n" if defined msgget(0, 0600);
print "sem\\n" if defined semget(0, 1, 0600);
my $place = "/dev/shm/left $$"; mkdir $place;
mkdir $place .= "/deeper" for 1 .. 500;
open(FILE, ">", "$place/--file") && print "files\\n"; chmod 0, $place;
"""
# Prints which calls it may make: unshare and clone with a new user namespace (also by clone3),
# setns, bpf, perf_event_open, userfaultfd, add_key and keyctl. The numbers are those of x86_64.
KERNEL_CALLS = """
my @calls = ([272, 0x10000000], [56, 0x10000011, 0, 0, 0, 0], [435, 0, 0], [308, -1, 0],
    [321, 0, 0, 0], [298, 0, 0, -1, -1, 0], [323, 0], [248, 0, 0, 0, 0, 0], [250, 0, 0]);
for my $call (@calls) {
    $! = 0; my $result = syscall($call->[0], @$call[1 .. $#$call]);
    exit 0 if $call->[0] == 56 && $result == 0;
    print "$call->[0]\n" unless $result == -1 && ($!{EPERM} || $!{ENOSYS});
}
"""
# Prints the names under which it could make setuid and setgid programs.
SET_IDS = """
for my $mode (04755, 02755, 06755) {
    my $name = "/tmp/set-id-$$-$mode";
    open(FILE, ">", $name); print "$mode\n" if chmod($mode, $name); unlink $name;
    print "directory\n" if mkdir($name, $mode) && ((stat $name)[2] & 06000); rmdir $name;
}
"""
own_accounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")


@pytest.fixture(scope="module")
def branch() -> Iterator[Path]:
    with own_branch(BRANCH) as directory:
        yield directory


@pytest.fixture(autouse=True)
def started(branch: Path) -> Iterator[None]:
    compute.start(SPEC)
    yield
    compute.stop(BRANCH)


def execute(program: str) -> set[str]:
    """Execute the Perl program as the compute's Postgres would, and return its lines."""
    command = psycopg.sql.Literal(f"perl -e {shlex.quote(program)}")
    with session(socket_dir(ENDPOINT)) as connection:
        connection.execute("CREATE TEMP TABLE said (text text)")
        connection.execute(psycopg.sql.SQL("COPY said FROM PROGRAM {}").format(command))
        return {str(text) for (text,) in connection.execute("SELECT text FROM said")}


@pytest.mark.skipif(not can_deny_ports(), reason="this kernel has no Landlock for ports")
def test_it_takes_no_port_of_the_host() -> None:
    assert execute(BINDS) == {"udp"}


@pytest.mark.skipif(not can_refuse_calls(), reason="this kernel can refuse no system calls")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_it_makes_no_user_namespace_and_reaches_no_rare_part_of_the_kernel() -> None:
    assert execute(KERNEL_CALLS) == set()


@pytest.mark.skipif(not can_refuse_calls(), reason="this kernel can refuse no system calls")
def test_it_makes_no_program_that_gives_its_account_to_others() -> None:
    assert execute(SET_IDS) == set()


@own_accounts
def test_parallel_queries_need_no_memory_that_all_computes_share(branch: Path) -> None:
    with session(socket_dir(ENDPOINT)) as connection:
        connection.execute("CREATE TABLE public.numbers AS SELECT generate_series(1, 200000) AS n")
        for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            connection.execute(f"SET {name} = 0".encode())
        connection.execute("SET enable_mergejoin = off")
        connection.execute("SET max_parallel_workers_per_gather = 2")
        plan = connection.execute(
            "EXPLAIN ANALYZE SELECT count(*) FROM public.numbers a JOIN public.numbers b USING (n)"
        ).fetchall()
        assert "Parallel Hash" in str(plan)
        assert "Workers Launched: 0" not in str(plan)
        owners = {entry.lstat().st_uid for entry in Path("/dev", "shm").iterdir()}
        assert account_of(branch).uid not in owners


@own_accounts
def test_its_shared_memory_ends_with_it(branch: Path) -> None:
    made = execute(LEAVES)
    assert made == ({"shm", "files"} if can_refuse_calls() else {"shm", "msg", "sem", "files"})
    compute.stop(BRANCH)
    assert account_of(branch).uid not in owners_of_objects()


@own_accounts
def test_a_round_removes_what_is_left_for_other_reasons(branch: Path) -> None:
    compute.stop(BRANCH)
    account = account_of(branch)
    command = ["perl", "-e", LEAVES]
    made = subprocess.run(command, capture_output=True, check=True, **running_as(account)).stdout
    assert set(made.split()) == {b"shm", b"msg", b"sem", b"files"}
    assert account.uid in owners_of_objects()
    end_stray_accounts()
    assert account.uid not in owners_of_objects()
