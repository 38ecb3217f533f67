"""The wheel: its contents, and that it runs without a checkout."""

import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.packaging.installation import Installation
from tests.support.client import Client
from tests.support.stack import ROOT, free_port, new_state_dir, running_stack
from tests.support.waiting import wait_for


def files_below(*folders: str) -> set[str]:
    found = {path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def test_it_contains_both_programs_and_their_files_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    data = {"Procfile", "manage.py"} | files_below(
        "deploy/grafana", "deploy/prometheus", "deploy/systemd", "templates", "static"
    )
    assert names == files_below("console", "controlplane") | {f"perch/{name}" for name in data}


def test_the_checkout_is_not_accessible(whole: Installation) -> None:
    """Otherwise the other tests here would prove nothing."""
    code = "import console, controlplane, perch.manage as p; print(p.__file__); import tests"
    done = whole.run("python", "-c", code)
    assert "No module named 'tests'" in done.stderr
    assert done.stdout.startswith(str(whole.path))


def test_it_runs_from_an_empty_directory(whole: Installation) -> None:
    with new_state_dir() as state_dir:
        program = [whole.bin / "perch"]
        outside: dict[str, Any] = {**whole.environment, "PYTHONPATH": ""}
        with running_stack(state_dir, program, cwd=whole.folder, **outside) as stack:
            check_styles(stack.console_url)
            client = Client(stack.api_url, (state_dir / "api-key").read_text().strip())
            created = client.new_project()
            assert {o["status"] for o in client.finish(created)} == {"finished"}
        assert stack.process.returncode == 0
    assert [path.name for path in whole.folder.iterdir() if path.name != "state"] == []


@pytest.mark.thorough
def test_the_base_serves_the_console_alone(console_alone: Installation) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [
            *(console_alone.bin / "gunicorn", "console.wsgi", "--no-control-socket"),
            *("--bind", f"127.0.0.1:{port}"),
        ],
        cwd=console_alone.folder,
        env={**console_alone.environment, "PERCH_SECRET_KEY": "secret"},
        stderr=subprocess.DEVNULL,
    ) as gunicorn:
        try:
            wait_for(lambda: gunicorn.poll() is not None or answers(url), "the console")
            check_styles(url)
        finally:
            gunicorn.terminate()


def check_styles(console_url: str) -> None:
    """Check that the sign-in page and its complete stylesheet are served."""
    page = requests.get(f"{console_url}/sign-in", timeout=10)
    assert page.ok, page.text
    (address,) = re.findall(r'href="(/static/[^"?]+\.css\?v=\w+)"', page.text)
    answer = requests.get(console_url + address, timeout=10)
    assert answer.headers["Content-Type"].startswith("text/css")
    for part in (ROOT / "static").glob("*.css"):
        longest_rule = max(part.read_text().splitlines(), key=len).strip()
        assert longest_rule in answer.text, part.name


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/sign-in", timeout=5).ok
    except requests.ConnectionError:
        return False


def test_its_help_lists_its_own_commands_first(whole: Installation) -> None:
    for arguments in ([], ["--help"]):
        lines = whole.run("perch", *arguments).stdout.splitlines()
        assert lines[0] == "usage: perch COMMAND [options]"
        own = [line.split()[0] for line in lines if line.startswith("  ")]
        assert own == [
            *("up", "accounts", "backup", "certificate_authority", "computes", "create_account"),
            *("create_api_key", "events", "history", "hosts", "install_pgbouncer"),
            *("install_units", "logs", "metrics", "migrate"),
            *("pg_dump", "pg_restore", "proxy", "psql"),
            *("regions", "restore", "rotate_secret_key", "sign_in_link", "upgrade_project"),
            *("verify_attestation", "worker"),
        ]
    assert "$XDG_STATE_HOME/perch" in whole.run("perch", "up", "--help").stdout


def test_it_knows_its_version(wheel: Path, whole: Installation) -> None:
    version = wheel.name.split("-")[1]
    assert whole.run("perch", "--version").stdout.strip() == version
    assert whole.run("perch", "version").stdout.strip() == version


@pytest.mark.thorough
def test_the_base_says_which_extra_the_other_commands_need(console_alone: Installation) -> None:
    assert "whl[controlplane]'" in console_alone.run("perch", "--help").stdout
    refused = console_alone.run("perch", "up")
    assert refused.returncode == 1
    assert "whl[controlplane]'" in refused.stderr
    assert "Traceback" not in refused.stderr
