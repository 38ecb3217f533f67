"""`manage.py install_units`: the units of systemd run what the Procfile names, and are accepted."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from django.core.management import CommandError, call_command

from controlplane.management.commands import install_units
from controlplane.management.supervision import Program, programs_of
from controlplane.management.units import UnitsUnusable, check_place, rendered_units
from tests.support.client import Client
from tests.support.ordinary_user import own_checkout
from tests.support.stack import ROOT, running_stack

# The highest exposure that systemd-analyze calls OK, in tenths.
OK = 49


@pytest.fixture
def installed(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the installed units. Those of these tests may name any place."""
    settings.STATE_DIR = tmp_path / "state"
    settings.SOCKET_DIR = settings.STATE_DIR / "sockets"
    monkeypatch.setattr(install_units, "check_place", lambda _: None)
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
    assert units.keys() == commands.keys()
    for name, text in units.items():
        (line,) = values_of(text, "ExecStart")
        # What systemd makes of it, before the shell does the same.
        read = shlex.split(line.replace("$$", "$").replace("%%", "%"))
        assert read == ["/bin/sh", "-c", f"exec {commands[name]}"]
        assert values_of(text, "WorkingDirectory") == [str(ROOT)]
        assert not re.search(r"@[\w.]+@", text)


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
    check_place(Path("/usr"))
    for place, complaint in (
        ("/root/perch", "lies below /root"),
        ("/home/alice/perch", "lies below /home"),
        ("/opt/my perch", "cannot name this path"),
        ("/opt/%h", "cannot name this path"),
    ):
        with pytest.raises(UnitsUnusable, match=complaint):
            check_place(Path(place))


def test_a_closed_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.management.units.HIDDEN", ())
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UnitsUnusable, match="must be able to enter"):
        check_place(closed / "perch")


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
def test_each_process_works_with_the_capabilities_of_its_unit(state_dir: Path) -> None:
    checkout = own_checkout(state_dir / "checkout")
    lines = [f"{one.name}: {bounded(one)}\n" for one in programs_of(ROOT / "Procfile")]
    (checkout / "Procfile").write_text("".join(lines))
    state = state_dir / "state"
    state.mkdir(mode=0o711)
    with running_stack(state, [sys.executable, checkout / "manage.py"], cwd=checkout) as stack:
        client = Client(stack.api_url, (state / "api-key").read_text().strip())
        created = client.new_project()
        assert {one["status"] for one in client.finish(created)} == {"finished"}
        uri = created["connection_uris"][0]["connection_uri"]
        endpoint = created["endpoints"][0]["id"]
        for address in (uri, uri.replace(endpoint, f"{endpoint}-pooler")):
            with psycopg.connect(address) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        if may_filter():
            with stack.database() as connection:
                query = "SELECT outbound_unfiltered FROM controlplane_host"
                assert connection.execute(query).fetchall() == [("",)]
        client.delete(f"/projects/{created['project']['id']}")
        assert requests.get((state / "metrics-address").read_text().strip(), timeout=10).ok


def may_filter() -> bool:
    """True if this host has nftables and lets root use it."""
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
    return program is not None and not subprocess.run([program, "list", "tables"]).returncode


def bounded(program: Program) -> str:
    """The program's command with the capabilities of its unit, and without new privileges."""
    unit = services()[f"perch-{program.name}.service"]
    named = " ".join(values_of(unit, "CapabilityBoundingSet")).split()
    # Only here: the private database of `up` belongs to another account.
    named += ["CAP_DAC_OVERRIDE"] * (program.name in ("api", "metrics"))
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in named]
    return f"setpriv --bounding-set {','.join(['-all', *kept])} --no-new-privs {program.command}"
