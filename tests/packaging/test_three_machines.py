"""The documents' commands lead from one machine to three. Each machine consists of namespaces: it
has an address, processes and a /var/lib/perch of its own. The metadata's Postgres has a fourth."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.packaging.documents import commands_of
from tests.support.bare_postgres import BarePostgres, Programs, private_directory
from tests.support.stack import ROOT, new_directory
from tests.support.waiting import load, wait_for

NAMES = ("db", "h1", "h2", "h3")
NETWORK = "10.213.7"
ADDRESSES = {name: f"{NETWORK}.{number}" for number, name in enumerate(NAMES, start=1)}
BRIDGE = "perchtest"
# Where root's state directory is.
STATE = "/var/lib/perch"
# Seconds for a machine to start: it makes the template of branches first.
START = 90.0
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
NAMED = "test_one_machine_grows_to_three"


def network(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def has_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@dataclass(frozen=True)
class Machine:
    """Namespaces whose first process waits; when it is killed, all of the machine's are."""

    name: str
    pid: int

    def command(self, script: str) -> list[str]:
        inside = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--wd=/"]
        return [*inside, "bash", "-euc", script]

    def run(self, script: str) -> str:
        """Run the lines in a shell of the machine. Returns what they print."""
        done = subprocess.run(
            self.command(script),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60 * load(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def api(self, path: str, body: Any = None) -> Any:
        """Call the API on this machine with the key of its operator."""
        data = f"--data '{json.dumps(body)}'" if body else ""
        answer = self.run(
            f'curl -sS --fail-with-body -H "Authorization: Bearer $(cat {STATE}/api-key)" {data} '
            f"http://127.0.0.1:8001/api/v2/{path}"
        )
        return json.loads(answer)


def environment() -> dict[str, str]:
    """What a user's shell has."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }


@contextmanager
def machine(name: str, folder: Path) -> Iterator[Machine]:
    state, hosts = folder / name, folder / "hosts"
    state.mkdir(mode=0o711)
    mounted = f"mkdir -p {STATE} && mount --bind {state} {STATE} && mount --bind {hosts} /etc/hosts"
    # Bash waits for processes whose parents have ended, as the first process has to.
    holder = subprocess.Popen(
        [*UNSHARE, "bash", "-c", f"{mounted} && echo ready && sleep 3600; :"],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        (inside,) = psutil.Process(holder.pid).children()
        here = Machine(name, inside.pid)
        network("link", "add", f"pt-{name}", "type", "veth", "peer", "name", f"ptm-{name}")
        try:
            network("link", "set", f"ptm-{name}", "netns", str(inside.pid))
            network("link", "set", f"pt-{name}", "master", BRIDGE, "up")
            here.run(
                f"ip link set lo up; ip link set ptm-{name} up;"
                f"ip address add {ADDRESSES[name]}/24 dev ptm-{name}"
            )
            yield here
        finally:
            network("link", "delete", f"pt-{name}")
    finally:
        holder.kill()
        holder.communicate()


@contextmanager
def machines(folder: Path) -> Iterator[dict[str, Machine]]:
    """The machines, which know each other's names."""
    lines = [f"{address} {name}.example.com" for name, address in ADDRESSES.items()]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    network("link", "add", BRIDGE, "type", "bridge")
    try:
        network("link", "set", BRIDGE, "up")
        with ExitStack() as all_of_them:
            yield {name: all_of_them.enter_context(machine(name, folder)) for name in NAMES}
    finally:
        network("link", "delete", BRIDGE)


@contextmanager
def metadata(here: Machine) -> Iterator[None]:
    """Run the Postgres for the metadata on this machine."""
    with private_directory() as directory:
        programs = Programs(directory)
        postgres = BarePostgres(programs, directory)
        postgres.initialize()
        with (directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK}.0/24 scram-sha-256\n")
        server = subprocess.Popen(
            here.command(
                "exec setpriv --reuid nobody --regid nogroup --clear-groups "
                f"{programs.path('postgres')} -D {directory}/data -c fsync=off "
                f"-c listen_addresses='*' -c unix_socket_directories={directory}"
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(postgres.answers, "the Postgres for the metadata")
            with postgres.connect() as session:
                session.execute("CREATE ROLE perch LOGIN PASSWORD 'password'")
                session.execute("CREATE DATABASE perch OWNER perch")
            yield
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def running(here: Machine, script: str, log: Path) -> Iterator[None]:
    """Run the lines, the last of which is `up`, until the end of the block."""

    def is_up() -> bool:
        return "Perch is up" in log.read_text()

    with log.open("wb") as output:
        process = subprocess.Popen(
            here.command(script), env=environment(), stdout=output, stderr=output
        )
    try:
        wait_for(lambda: is_up() or process.poll() is not None, "up", timeout=START)
        assert is_up(), log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(60 * load())


@pytest.mark.thorough
@pytest.mark.skipif(not has_namespaces(), reason="only root can make namespaces")
def test_one_machine_grows_to_three() -> None:
    page = ROOT / "docs/how-to/production.md"
    first, add, join = [block.text for block in commands_of(page) if block.run_by == NAMED]
    exports = first.rpartition("\n")[0]
    with ExitStack() as service:
        folder = service.enter_context(new_directory())
        known = service.enter_context(machines(folder))
        service.enter_context(metadata(known["db"]))
        h1 = known["h1"]
        service.enter_context(running(h1, first, folder / "h1.log"))
        for name in ("h2", "h3"):
            printed = h1.run(f"{exports}\n{add.replace('h2', name)}")
            line = printed.splitlines()[0]
            lines = join.replace(join.splitlines()[0], line)
            assert lines != join
            service.enter_context(running(known[name], lines, folder / f"{name}.log"))

        listed = h1.run(f"{exports}\nperch hosts")
        assert re.findall(r"^h\d", listed, re.MULTILINE) == ["h1", "h2", "h3"]

        created = h1.api("projects", {"project": {"name": "shop"}})
        project = created["project"]["id"]
        uri = created["connection_uris"][0]["connection_uri"]
        endpoint = created["endpoints"][0]["id"]
        assert f"@{endpoint}.perch.example.com/" in uri

        def home() -> str:
            """The host that the project lives on."""
            row = f"SELECT host_id FROM controlplane_project WHERE id = '{project}'"
            return h1.run(f'{exports}\npsql "$DATABASE_URL" -Atqc "{row}"').strip()

        def ask(name: str, statement: str) -> str:
            """Connect from the first machine to the proxy of the machine called `name`."""
            target = f"{uri}&hostaddr={ADDRESSES[name]}"
            return h1.run(f"psql '{target}' -Atqc \"{statement}\"").strip()

        ask("h1", "CREATE TABLE birds AS SELECT 'heron' AS name")
        for name in ("h2", "h3"):
            assert ask(name, "SELECT name FROM birds") == "heron"

        before = home()
        h1.run(f"{exports}\nperch hosts drain {before}")
        wait_for(lambda: home() != before, "the move", timeout=START)
        for name in ("h1", "h2", "h3"):
            assert ask(name, "SELECT name FROM birds") == "heron"
