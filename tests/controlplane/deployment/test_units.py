"""`manage.py install_units`: the units of systemd run what the Procfile names, and are accepted."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import requests
from django.core.management import CommandError, call_command

from controlplane.deployment.supervision import Program, programs_of
from controlplane.management.commands import install_units
from controlplane.management.commands.install_units import (
    STOPS_COMPUTES,
    UnitsUnusable,
    check_place,
    rendered_units,
)
from tests.controlplane.deployment.test_metadata_copy import new_database
from tests.support.bare_postgres import BarePostgres
from tests.support.client import Client
from tests.support.ordinary_user import own_checkout, own_python
from tests.support.stack import NOTHING_KEPT, ROOT, free_port
from tests.support.waiting import wait_for

# The highest exposure that systemd-analyze calls OK, in tenths.
OK = 49


@pytest.fixture
def installed(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the installed units. Those of these tests may name any place."""
    settings.STATE_DIR = tmp_path / "state"
    settings.SOCKET_DIR = settings.STATE_DIR / "sockets"
    monkeypatch.setattr(install_units, "check_place", lambda *_: None)
    call_command("install_units", directory=tmp_path / "units")
    return tmp_path / "units"


def services() -> dict[str, str]:
    units = rendered_units(ROOT, state_dir=Path("/var/lib/perch"))
    return {name: text for name, text in units.items() if name.endswith(".service")}


def values_of(unit: str, setting: str) -> list[str]:
    return re.findall(rf"^{setting}=(.*)$", unit, re.MULTILINE)


def test_each_process_has_a_unit_that_runs_its_command() -> None:
    units = services()
    commands = {f"perch-{one.name}.service": one.command for one in programs_of(ROOT / "Procfile")}
    units.pop("perch-computes.service")
    assert units.keys() == commands.keys()
    for name, text in units.items():
        (line,) = values_of(text, "ExecStart")
        # What systemd makes of it, before the shell does the same.
        read = shlex.split(line.replace("$$", "$").replace("%%", "%"))
        assert read == ["/bin/sh", "-c", f"exec {commands[name]}"]
        assert values_of(text, "WorkingDirectory") == [str(ROOT)]
        assert not re.search(r"@[\w.]+@", text)


def test_computes_are_stopped_only_after_the_worker_as_the_host_shuts_down() -> None:
    unit = services()["perch-computes.service"]
    (line,) = values_of(unit, "ExecStop")
    assert line == f'/bin/sh -c "exec {STOPS_COMPUTES.command}"'
    assert values_of(unit, "ExecStart")[-1] == "/bin/true"
    assert values_of(unit, "RemainAfterExit") == ["yes"]
    assert values_of(unit, "Before") == ["perch-worker.service"]
    assert "postgresql.service" in values_of(unit, "After")[0]
    # Nothing but a shutdown stops it.
    assert not re.search("^(PartOf|BindsTo|Requires)=", unit, re.MULTILINE)


def test_the_worker_and_the_proxy_leave_their_children() -> None:
    modes = {name: values_of(text, "KillMode") for name, text in services().items()}
    assert {name for name, mode in modes.items() if mode == ["process"]} == {
        "perch-worker.service",
        "perch-proxy.service",
    }


def test_changed_units_are_overwritten_only_by_force(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = {path.name: path.read_text() for path in installed.iterdir()}
    assert units.keys() == {"perch.target", *services()}
    call_command("install_units", directory=installed)
    out = capsys.readouterr().out
    assert ": written" not in out
    assert f"systemctl enable --now perch.target {' '.join(sorted(services()))}" in out

    changed, missing = installed / "perch-api.service", installed / "perch-web.service"
    changed.write_text("changed")
    missing.unlink()
    with pytest.raises(CommandError, match=f"^{changed}: differs"):
        call_command("install_units", directory=installed)
    assert changed.read_text() == "changed"
    assert not missing.exists()

    call_command("install_units", directory=installed, force=True)
    assert {path.name: path.read_text() for path in installed.iterdir()} == units


def test_places_that_the_processes_cannot_reach_are_refused(tmp_path: Path) -> None:
    check_place("Python", Path("/usr"))
    for place, complaint in (
        ("/root/perch", "Python is in /root/perch, and the units hide /root "),
        ("/home/alice/perch", "the units hide /home "),
        ("/opt/my perch", "cannot name this path"),
        ("/opt/%h", "cannot name this path"),
    ):
        with pytest.raises(UnitsUnusable, match=complaint):
            check_place("Python", Path(place))


def test_a_closed_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.management.commands.install_units.HIDDEN", ())
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UnitsUnusable, match="must be able to enter"):
        check_place("Perch", closed / "perch")


def test_systemd_accepts_the_units_and_calls_their_exposure_ok(installed: Path) -> None:
    paths = [str(path) for path in sorted(installed.iterdir())]
    assert analyze("verify", "--man=no", *paths) == ""
    for path in paths:
        if path.endswith(".service"):
            analyze("security", "--offline=true", f"--threshold={OK}", path)


def analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
def test_the_processes_work_with_the_accounts_and_capabilities_of_their_units(
    state_dir: Path, bare_cluster: BarePostgres
) -> None:
    checkout = own_checkout(state_dir / "checkout")
    python = own_python(state_dir / "venv")
    state, ports = state_dir / "state", [str(free_port()) for _ in range(3)]
    # The processes' accounts connect to its socket.
    bare_cluster.directory.chmod(0o711)
    environment = {
        **{name: value for name, value in os.environ.items() if "DJANGO" not in name},
        **NOTHING_KEPT,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PERCH_STATE_DIR": str(state),
        "PERCH_SECRET_KEY": "a secret key",
        "DATABASE_URL": new_database(bare_cluster, "units"),
        **dict(zip(("PORT", "API_PORT", "PERCH_PROXY_PORT"), ports, strict=True)),
    }

    def manage(*arguments: str) -> str:
        done = subprocess.run(
            [python, "manage.py", *arguments],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    prepare = "from controlplane.deployment.process_setup import prepare_for_units as p; p()"
    manage("shell", "--settings", "controlplane.settings", "-c", prepare)
    manage("migrate", "--settings", "controlplane.settings")
    key = manage("create_api_key", "--account", "alice", "--name", "key").splitlines()[-1]
    with ExitStack() as running:
        found = {
            one.name: running.enter_context(as_in_unit(one, checkout, environment))
            for one in programs_of(ROOT / "Procfile")
        }
        health = f"http://127.0.0.1:{ports[1]}/healthz"
        wait_for(lambda: is_well(health), "all processes", timeout=120)
        assert accounts_of(found["api"]) == {"perch-api"}
        assert accounts_of(found["metrics"]) == {"perch-metrics"}
        assert accounts_of(found["proxy"]) == {"perch-proxy", "perch-worker"}
        client = Client(f"http://127.0.0.1:{ports[1]}/api/v2", key)
        created = client.new_project()
        assert {one["status"] for one in client.finish(created)} == {"finished"}
        uri = created["connection_uris"][0]["connection_uri"]
        endpoint = created["endpoints"][0]["id"]
        for address in (uri, uri.replace(endpoint, f"{endpoint}-pooler")):
            with psycopg.connect(address) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        if may_filter():
            with psycopg.connect(environment["DATABASE_URL"]) as connection:
                query = "SELECT outbound_unfiltered FROM controlplane_host"
                assert connection.execute(query).fetchall() == [("",)]
        client.delete(f"/projects/{created['project']['id']}")
        wait_for(lambda: not list((state / "branches").glob("br-*")), "the end of the compute")
        figures = (state / "metrics-address").read_text().strip()
        text = requests.get(figures, timeout=10).text
        for name in ("api", "worker", "proxy"):
            assert f'perch_process_starts_total{{process="{name}"}}' in text
        assert not any(process.poll() for process in found.values())


@contextmanager
def as_in_unit(
    program: Program, checkout: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the program's command with the account, groups, capabilities and variables of its unit,
    without new privileges. systemd itself does not run where the tests do."""
    unit = services()[f"perch-{program.name}.service"]
    named = " ".join(values_of(unit, "CapabilityBoundingSet")).split()
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in named]
    options = ["--no-new-privs", "--bounding-set", ",".join(["-all", *kept])]
    for account in values_of(unit, "User"):
        groups = [account, *values_of(unit, "SupplementaryGroups")]
        options += ["--reuid", account, "--regid", account, "--groups", ",".join(groups)]
    unset = " ".join(values_of(unit, "UnsetEnvironment")).split()
    given = {"PERCH_PROCESS_ACCOUNTS": "on"}
    assert "PERCH_PROCESS_ACCOUNTS=on" in values_of(unit, "Environment")
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec setpriv {shlex.join(options)} {program.command}"],
        cwd=checkout,
        env={name: value for name, value in environment.items() if name not in unset} | given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            # The proxy's children would serve their clients to the end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def accounts_of(process: "subprocess.Popen[bytes]") -> set[str]:
    """The accounts of the process and its children."""
    main = psutil.Process(process.pid)
    return {one.username() for one in [main, *main.children(recursive=True)]}


def is_well(url: str) -> bool:
    try:
        return str(requests.get(url, timeout=10).json()["status"]) == "ok"
    except requests.ConnectionError:
        return False


def may_filter() -> bool:
    """True if this host has nftables and lets root use it."""
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
    return program is not None and not subprocess.run([program, "list", "tables"]).returncode
