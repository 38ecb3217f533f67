"""The files in which processes keep their figures."""

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.metrics import figures, values
from tests.selection import first_of
from tests.support.filesystems import filled, mounted
from tests.support.stack import ROOT

# Counts in a slot of the directory.
COUNTING = """
import sys
from pathlib import Path
from controlplane.metrics import figures, values
values.begin(Path(sys.argv[1]), "test", figures.known_names())
figures.FAILED_ROUNDS.labels("a round").inc(3)
figures.POOLERS.set(2)
print("counted", flush=True)
input()
figures.FAILED_ROUNDS.labels("a round").inc(4)
"""


class Counting:
    """A process that counts."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COUNTING, str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "counted\n"

    def end(self) -> int:
        self._process.communicate("\n", timeout=30)
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def read(directory: Path) -> dict[str, float]:
    """Return what `COUNTING` counts, by its name."""
    script = (
        "import sys; from pathlib import Path; from controlplane.metrics import figures, values\n"
        "for metric in values.collect(Path(sys.argv[1]), figures.known_names()):\n"
        "    for sample in metric.samples: print(sample.name, sample.value)"
    )
    output = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = ("perch_rounds_failed_total", "perch_poolers")
    found = dict(line.split() for line in output.splitlines())
    return {name: float(found[name]) for name in names if name in found}


@pytest.mark.thorough
def test_processes_add_up_and_what_a_dead_one_has_counted_stays(tmp_path: Path) -> None:
    one, other = Counting(tmp_path), Counting(tmp_path)
    assert read(tmp_path) == {"perch_rounds_failed_total": 6, "perch_poolers": 4}
    assert one.end() == 0
    other.kill()
    # The gauges of living processes went with them; what was counted did not.
    assert read(tmp_path)["perch_rounds_failed_total"] == 10
    assert "perch_poolers" not in read(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    again = Counting(tmp_path)
    assert read(tmp_path)["perch_rounds_failed_total"] == 13
    assert read(tmp_path)["perch_poolers"] == 2
    # The successor has taken the place of the first.
    assert {path.name for path in tmp_path.iterdir()} == files
    again.kill()


def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    Counting(tmp_path).kill()
    for path in tmp_path.glob("*.db"):
        path.write_bytes(b"\xff" * 100)
    counting = Counting(tmp_path)
    assert read(tmp_path)["perch_rounds_failed_total"] == 3
    counting.kill()


def written(*entries: tuple[Any, float], used: int | None = None) -> bytes:
    """A file of figures as prometheus-client writes it; `used` is what it says of its length."""
    content = b""
    for key, value in entries:
        text = (key if isinstance(key, str) else json.dumps(key)).encode()
        padding = b" " * (8 - (len(text) + 4) % 8)
        content += struct.pack("i", len(text)) + text + padding + struct.pack("dd", value, 0)
    length = 8 + len(content) if used is None else used
    return struct.pack("ii", length, 0) + content


FAILED = "perch_rounds_failed"
GOOD = ([FAILED, f"{FAILED}_total", {"round": "a round"}, "about"], 5.0)
BAD = {
    "garbage": b"\xff" * 100,
    "empty": b"",
    "says that it is longer": written(GOOD, used=1 << 31 - 1),
    "a negative length, which would be read forever": struct.pack("iii", 100, 0, -28) + bytes(99),
    "a key beyond the end": struct.pack("iii", 100, 0, 1 << 30) + bytes(99),
    "no JSON": written(GOOD, ("[", 1.0)),
    "not a list": written(GOOD, (1, 1.0)),
    "not a name": written(GOOD, ([[], "", {}, ""], 1.0)),
    "a sample's name with a line break": written(
        GOOD, ([FAILED, f"{FAILED}_total 1\nperch_poolers", {}, ""], 1.0)
    ),
    "a sample of another figure": written(GOOD, ([FAILED, "perch_poolers", {}, ""], 1.0)),
    "a label's name with a line break": written(
        GOOD, ([FAILED, f"{FAILED}_total", {"a\nb": "c"}, ""], 1.0)
    ),
    "labels that are none": written(GOOD, ([FAILED, f"{FAILED}_total", [1], ""], 1.0)),
    "a bound that is no number": written(
        GOOD, ([FAILED, f"{FAILED}_total", {"le": "many"}, ""], 1.0)
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_left_out_and_the_others_are_read(tmp_path: Path, what: str) -> None:
    for name, content in [
        ("counter_api-0.db", written(GOOD)),
        ("counter_api-1.db", BAD[what]),
        ("histogram_api-1.db", BAD[what]),
        # Of another kind than the figure has in the files before.
        ("summary_api-1.db", written(GOOD)),
        ("other_api-1.db", written(GOOD)),
        ("counter_api-2.db", written(GOOD, (["evil", "evil", {}, ""], 1.0))),
    ]:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "counter_api-3.db").symlink_to(tmp_path / "counter_api-0.db")
    (tmp_path / "counter_api-4.db").mkdir()
    os.mkfifo(tmp_path / "counter_api-5.db")
    found = {metric.name: metric for metric in values.collect(tmp_path, figures.known_names())}
    assert found.keys() == {FAILED}
    assert [(one.labels, one.value) for one in found[FAILED].samples] == [
        ({"round": "a round"}, 10.0)
    ]


@pytest.mark.thorough
def test_a_full_disk_ends_no_process() -> None:
    with mounted("ext4", size=64 << 20) as place:
        counting = Counting(place / "metrics")
        with filled(place, leaving=0):
            # Without allocated blocks, this would be SIGBUS.
            assert counting.end() == 0
        with filled(place, leaving=0):
            late = Counting(place / "others")
            assert late.end() == 0
        assert read(place / "metrics")["perch_rounds_failed_total"] == 7


@pytest.mark.parametrize(
    "name", first_of(["counter_test-0.db", "test-0.lock", "counter_test-0.new"])
)
@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_what_another_account_puts_in_a_files_place_is_left_alone(
    tmp_path: Path, name: str, kind: str
) -> None:
    """All accounts of processes may make files in the directory; the worker acts as root there."""
    victim, directory = tmp_path / "victim", tmp_path / "figures"
    directory.mkdir()
    victim.write_bytes(b"secret")
    victim.chmod(0o600)
    if kind == "symbolic":
        (directory / name).symlink_to(victim)
    elif kind == "hard":
        os.link(victim, directory / name)
    else:
        os.mkfifo(directory / name)
    assert Counting(directory).end() == 0
    assert "secret" not in str(read(directory))
    status = victim.stat()
    assert (victim.read_bytes(), stat.S_IMODE(status.st_mode)) == (b"secret", 0o600)


def test_only_its_own_account_can_write_to_a_file(tmp_path: Path) -> None:
    counting = Counting(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
    assert counting.end() == 0
