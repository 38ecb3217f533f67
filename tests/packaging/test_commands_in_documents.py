"""Every command in the documents does what it should, with a real service.

A page's blocks run in order in one shell, in a directory with what a user's checkout has, for a
reader who has a project. The documents' example names are replaced by the reader's own
(`Reader.own`), and nothing else is changed. A mark before a block (`documents.py`) says why it is
not run.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.documents import Block, commands_of, documents
from tests.support.client import Client
from tests.support.stack import ROOT, Stack, free_port, new_directory
from tests.support.waiting import load, wait_for

# Before a page's commands. An error ends the page, also an error of the API.
PREAMBLE = """
set -euo pipefail
curl() { command curl --fail-with-body --max-time 60 "$@"; }
export -f curl
expect() { [ "$1" = "$2" ] || { echo "printed instead of '$2': '$1'"; exit 1; }; }
"""
PAGE_SECONDS, ENDLESS_SECONDS = 120, 5
# The status of `timeout` if the command did not end by itself.
STOPPED = 124
# Pages on which every command starts a program of Perch, which takes seconds on a busy machine.
SLOW_PAGES = ("access", "backup", "hosts", "leaving", "observing")


def pages() -> Iterator[Any]:
    for page in documents():
        if any(not block.is_left_out for block in commands_of(page)):
            marks = [pytest.mark.thorough] if page.stem in SLOW_PAGES else []
            yield pytest.param(page, id=page.stem, marks=marks)


@dataclass(frozen=True)
class Reader:
    """A reader who has followed the README so far, and has a project."""

    stack: Stack
    client: Client
    folder: Path
    created: Any

    @property
    def uri(self) -> str:
        uri: str = self.created["connection_uris"][0]["connection_uri"]
        return uri

    @property
    def endpoint_id(self) -> str:
        endpoint_id: str = self.created["endpoints"][0]["id"]
        return endpoint_id

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with the variables that pages use without setting them."""
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PERCH_STATE_DIR": str(self.stack.state_dir),
            "PERCH_API": self.stack.api_url,
            "PERCH_API_KEY": self.client.key,
            "project": self.created["project"]["id"],
            "endpoint": self.endpoint_id,
            "uri": self.uri,
            "pooled_uri": self.uri.replace(self.endpoint_id, f"{self.endpoint_id}-pooler"),
        }

    def own(self, text: str) -> str:
        """Replace the documents' example addresses, ids and directories by the reader's own."""
        uri = r"postgresql://neondb_owner:…@localhost/neondb\?options=endpoint%3Dep-[\w-]+"
        text = re.sub(uri, lambda _: self.uri, text)
        if "ep-other-crane-654321" in text:
            other = self.client.new_project()["endpoints"][0]["id"]
            text = text.replace("ep-other-crane-654321", other)
        for theirs, ours in {
            "127.0.0.1:8000": f"127.0.0.1:{free_port()}",
            "127.0.0.1:8001": self.stack.api_url.split("/")[2],
            "ep-quiet-heron-123456": self.endpoint_id,
            "quiet-heron-12345678": self.created["project"]["id"],
            "/backups": f"{self.folder}/backups",
            "/var/lib/perch-new": f"{self.folder}/perch-new",
        }.items():
            text = text.replace(theirs, ours)
        return text


@pytest.fixture
def reader(stack: Stack) -> Iterator[Reader]:
    client = Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())
    with new_directory() as folder:
        (folder / "backups").mkdir()
        (folder / "var").symlink_to(stack.state_dir)
        yield Reader(stack, client, folder, client.new_project())


@pytest.mark.parametrize("page", [*pages()])
def test_a_pages_commands_succeed_in_order(reader: Reader, page: Path) -> None:
    lines = [PREAMBLE]
    for block in commands_of(page):
        if not block.is_left_out:
            lines += [f"echo '== {block.name}'", script(block, reader)]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=reader.folder,
        env=reader.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS * load(),
    )
    assert done.returncode == 0, done.stdout


def script(block: Block, reader: Reader) -> str:
    """Return what the page's shell runs for the block."""
    text = reader.own(block.text)
    if block.language == "sql":
        return f"psql -v ON_ERROR_STOP=1 {shlex.quote(reader.uri)} <<'END'\n{text}\nEND"
    if block.language == "console":
        return "\n".join(sessions(text))
    if block.is_endless:
        stopped = f"timeout {ENDLESS_SECONDS} bash -c {shlex.quote(text)} || stopped=$?"
        return f"stopped=0; {stopped}; [ $stopped = {STOPPED} ]"
    return text


def sessions(text: str) -> Iterator[str]:
    """Yield sessions: what was typed at the shell's or a program's prompt must print what was
    printed."""
    for typed, rest in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE):
        lines = rest.splitlines()
        entered = "\n".join(line.partition("=> ")[2] for line in lines if "=> " in line)
        printed = "\n".join(line for line in lines if "=> " not in line)
        yield f"expect \"$({{ {typed}\n}} <<'END'\n{entered}\nEND\n)\" {shlex.quote(printed)}"


@pytest.mark.thorough
def test_perch_starts_as_the_documents_say(state_dir: Path) -> None:
    """From a clone without an environment, by one line, which is the same in every document."""
    name = "test_perch_starts_as_the_documents_say"
    (line,) = {b.text for page in documents() for b in commands_of(page) if b.run_by == name}
    checkout, state, output = (state_dir / name for name in ("checkout", "state", "output"))
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    with (
        output.open("wb") as log,
        subprocess.Popen(
            ["bash", "-c", line],
            cwd=checkout,
            env={**os.environ, "PERCH_STATE_DIR": str(state)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as shell,
    ):
        wait_for(
            lambda: shell.poll() is not None or "Perch is up" in output.read_text(),
            "the start from a clone",
            timeout=600,
        )
        # As Ctrl-C, which reaches the shell and its commands.
        os.killpg(shell.pid, signal.SIGINT)
        shell.wait(90 * load())
    assert "Perch is up" in output.read_text(), output.read_text()
    assert (state / "api-key").exists()
