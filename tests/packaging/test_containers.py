"""deploy/oci: the image is built of Debian's packages and the wheel, and compose.yaml runs it."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import requests
import yaml

from controlplane.deployment.supervision import programs_of
from tests.packaging.containers import DATABASE_IMAGE, IMAGE, OCI, Podman, skip_if_missing
from tests.packaging.test_environment import documented
from tests.support.client import Client
from tests.support.stack import ROOT, free_port, new_directory
from tests.support.waiting import wait_for

WORKER = "perch-worker"
ACCOUNT = 10001
SERVICES = yaml.safe_load((OCI / "compose.yaml").read_text())["services"]
# Those that run a process of Perch, without the one that ends by itself.
PROCESSES = [name for name in SERVICES if name not in ("database", "migrate")]


def test_each_process_has_a_service_that_runs_it_confined() -> None:
    assert sorted(PROCESSES) == sorted(one.name for one in programs_of(ROOT / "Procfile"))
    for name in (*PROCESSES, "migrate"):
        service = SERVICES[name]
        assert service["command"] == ["release" if name == "migrate" else name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["environment"].keys() <= documented().keys()
    # The worker counts the proxy's connections, and the proxy watches the computes' processes.
    for name in ("proxy", "metrics"):
        assert SERVICES[name]["pid"] == f"container:{SERVICES['worker']['container_name']}"
        assert SERVICES[name]["network_mode"] == "service:worker"


@pytest.fixture(scope="module")
def podman(wheel: Path) -> Iterator[Podman]:
    """compose.yaml's services, which run. The tests of this module use them in order."""
    skip_if_missing()
    with new_directory() as place:
        subnet = f"10.{89 + secrets.randbelow(100)}.{secrets.randbelow(256)}"
        ports = {f"PERCH_{name}_PORT": str(free_port()) for name in ("API", "CONSOLE", "PROXY")}
        podman = Podman(
            place,
            {
                **ports,
                "PERCH_METRICS_PORT": str(free_port()),
                "PERCH_IMAGE": IMAGE,
                "PERCH_DATABASE_IMAGE": DATABASE_IMAGE,
                "PERCH_DATABASE_PASSWORD": secrets.token_hex(16),
                "PERCH_SUBNET": f"{subnet}.0/24",
                "PERCH_CONSOLE_ADDRESS": f"{subnet}.10",
            },
        )
        podman.configure()
        shutil.copy(OCI / "compose.yaml", place)
        key = place / "secret-key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o400)
        os.chown(key, ACCOUNT, ACCOUNT)
        podman.build_images(wheel)
        tried = podman.run("podman", "run", "--rm", "--read-only", IMAGE, "--version", check=False)
        if wheel.name.split("-")[1] not in tried:
            pytest.skip(f"no container runs on this host: {tried.strip()[-300:]}")
        try:
            # Without systemd nothing runs health checks by itself, so podman-compose does not wait.
            podman.compose("up", "-d", "database")
            wait_for(lambda: is_healthy(podman, "database"), "the database")
            podman.compose("up", "-d")
            wait_for(lambda: answers(podman, "API", "/healthz"), "the service", timeout=300)
            wait_for(lambda: answers(podman, "CONSOLE", "/healthz"), "the console", timeout=60)
            yield podman
        finally:
            podman.compose("down", "--volumes", "--timeout", "60")
            podman.run("podman", "system", "reset", "--force")


def is_healthy(podman: Podman, service: str) -> bool:
    """True if the service's health check passes now, which its container then executes."""
    failed = podman.run("podman", "healthcheck", "run", f"perch_{service}_1", check=False)
    return not failed.strip()


def url(podman: Podman, process: str) -> str:
    return f"http://127.0.0.1:{podman.variables[f'PERCH_{process}_PORT']}"


def answers(podman: Podman, process: str, path: str) -> bool:
    try:
        return requests.get(url(podman, process) + path, timeout=10).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def client(podman: Podman) -> Client:
    created = podman.run(
        *("podman", "exec", WORKER, "perch", "create_api_key", "--account", "alice"),
        *("--name", "laptop", "--plan", "unlimited"),
    )
    return Client(f"{url(podman, 'API')}/api/v2", created.split()[-1])


@pytest.fixture(scope="module")
def uri(client: Client) -> str:
    """The connection string of a new project's endpoint."""
    created = client.new_project()
    assert {one["status"] for one in client.finish(created)} == {"finished"}
    uri: str = created["connection_uris"][0]["connection_uri"]
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE birds AS SELECT 'heron' AS name")
    return uri


def birds(uri: str) -> list[str]:
    with psycopg.connect(uri) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM birds")]


def endpoint_of(uri: str) -> str:
    found = re.search(r"ep-[a-z]+-[a-z]+-\d+", uri)
    assert found is not None
    return found[0]


def computes(podman: Podman) -> list[str]:
    listed = podman.run("podman", "top", WORKER, "hpid", "args").splitlines()
    return [line.split()[0] for line in listed if "/postgres -D" in line]


@pytest.mark.thorough
def test_a_client_wakes_its_compute_and_is_pooled(podman: Podman, client: Client, uri: str) -> None:
    assert birds(uri) == ["heron"]
    endpoint = endpoint_of(uri)
    project = client.get("/projects")["projects"][0]["id"]
    client.finish(client.post(f"/projects/{project}/endpoints/{endpoint}/suspend"))
    assert computes(podman) == []
    assert birds(uri) == ["heron"]
    assert len(computes(podman)) == 1
    pooled = uri.replace(endpoint, f"{endpoint}-pooler")
    # Debian 12's PgBouncer cannot prepare statements.
    with psycopg.connect(pooled, prepare_threshold=None) as connection:
        assert connection.execute("SELECT name FROM birds").fetchone() == ("heron",)
    assert "pgbouncer" in podman.run("podman", "top", WORKER, "comm") + podman.run(
        "podman", "top", "perch_proxy_1", "comm"
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("uri")
def test_every_process_is_confined(podman: Podman) -> None:
    for name in PROCESSES:
        container = WORKER if name == "worker" else f"perch_{name}_1"
        found = podman.inspect(container)
        assert found["HostConfig"]["ReadonlyRootfs"]
        status = Path(f"/proc/{found['State']['Pid']}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert fields["Uid"].split() == [str(ACCOUNT)] * 4
        for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(fields[kind], 16) == 0, kind
        assert fields["NoNewPrivs"] == "1"
        refused = podman.run("podman", "exec", container, "touch", "/opt/perch/x", check=False)
        assert "Read-only file system" in refused


@pytest.mark.thorough
@pytest.mark.usefixtures("uri")
def test_every_health_check_passes(podman: Podman) -> None:
    for name, service in SERVICES.items():
        assert "healthcheck" not in service or is_healthy(podman, name), name


@pytest.mark.thorough
@pytest.mark.usefixtures("uri")
def test_the_figures_of_all_processes_are_at_one_address(podman: Podman) -> None:
    text = requests.get(url(podman, "METRICS") + "/metrics", timeout=10).text
    counted = set(re.findall(r'^perch_processes\{process="(\w+)"\} [1-9]', text, re.M))
    assert counted == {"api", "worker", "proxy", "metrics"}


@pytest.mark.thorough
def test_computes_survive_the_worker_process(podman: Podman, uri: str) -> None:
    with psycopg.connect(uri) as connection:
        before = computes(podman)
        assert before
        killed = podman.run("podman", "exec", WORKER, "sh", "-c", KILL_WORKER)
        assert killed.split()
        wait_for(lambda: worker_pid(podman) not in ("", killed.split()[0]), "another worker")
        wait_for(lambda: answers(podman, "API", "/healthz"), "the service", timeout=60)
        assert connection.execute("SELECT name FROM birds").fetchone() == ("heron",)
        assert computes(podman) == before


FIND_WORKER = (
    'for p in /proc/[0-9]*; do [ "$(tr "\\0" " " < $p/cmdline)" = "python manage.py worker " ] '
    "&& echo ${p#/proc/}; done; true"
)
KILL_WORKER = f"pid=$({FIND_WORKER}); kill -9 $pid; echo $pid"


def worker_pid(podman: Podman) -> str:
    return podman.run("podman", "exec", WORKER, "sh", "-c", FIND_WORKER).strip()


@pytest.mark.thorough
def test_a_stopped_host_stops_its_computes_in_order_and_keeps_their_data(
    podman: Podman, uri: str
) -> None:
    assert birds(uri) == ["heron"]
    for name in ("perch_metrics_1", "perch_proxy_1", WORKER):
        podman.run("podman", "stop", "--time", "120", name)
    assert "Computes stopped: 1." in podman.run("podman", "logs", WORKER)
    for name in (WORKER, "perch_proxy_1", "perch_metrics_1"):
        podman.run("podman", "start", name)
    wait_for(lambda: answers(podman, "API", "/healthz"), "the service", timeout=120)
    assert birds(uri) == ["heron"]
    # A compute that was killed would have said that it recovers.
    logs = podman.run("podman", "exec", WORKER, "perch", "logs", endpoint_of(uri))
    assert "was not properly shut down" not in logs
