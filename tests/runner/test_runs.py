"""What `python -m tests` reports about tests that fail, pass on a second try, or are left out."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import time_machine

from tests import __main__ as runner
from tests.outcomes import Outcomes
from tests.selection import first_of
from tests.support.stack import held, remove_abandoned
from tests.support.waiting import load

TESTS = """
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_good():
    pass


def test_shaky():
    seen = HERE / "seen"
    if not seen.exists():
        seen.touch()
        print("said at first")
        raise AssertionError("lost at first")


def test_bad():
    raise AssertionError("never holds")


@pytest.fixture
def stack():
    return None


@pytest.fixture
def shop(stack):
    return stack


@pytest.mark.parametrize("name", ["a/b", "c::d [é]"])
def test_odd_names_are_found_again(shop, name):
    seen = HERE / ("seen " + name.replace("/", ""))
    if not seen.exists():
        seen.touch()
        raise AssertionError(name)


@pytest.fixture
def ending():
    yield
    raise AssertionError("a poor end")


def test_whose_fixture_fails(ending):
    raise AssertionError("and bad itself")


@pytest.mark.thorough
def test_costly():
    pass
"""


TIERS = """
import os

import pytest

from tests.selection import FAST


@pytest.fixture
def stack():
    return None


def test_fast():
    assert FAST in os.environ


def test_with_a_service(stack):
    assert FAST not in os.environ


@pytest.mark.slow
def test_slow():
    assert FAST not in os.environ
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.selection\n")
    (tmp_path / "test_them.py").write_text(TESTS)
    monkeypatch.setattr(runner, "SUITES", (tmp_path.name,))
    monkeypatch.setattr(runner, "TESTS", tmp_path.parent)
    # Plugins that these tests do not need take longer to load than the tests to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin,pytest_rerunfailures,pytest_timeout")
    return tmp_path


@pytest.mark.usefixtures("suite")
def test_a_test_that_fails_and_then_passes_is_flaky(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main([]) == 1
    before, _, summary = capsys.readouterr().out.partition("== summary")
    (shaky,) = (part for part in before.split("== flaky: ")[1:] if "::test_shaky," in part)
    assert "test_shaky, its first failure" in shaky
    assert "lost at first" in shaky
    assert "said at first" in shaky
    (bad,) = (part for part in before.split("== failed twice: ")[1:] if "::test_bad," in part)
    assert "test_bad, its first failure" in bad
    counts, _, named = summary.partition("FLAKY")
    assert "4 passed, 2 failed, 1 error" in counts
    assert "1 tests were left out" in counts
    flaky, _, failed = named.partition("FAILED")
    assert sorted(re.findall("::(.*)", flaky)) == [
        "test_odd_names_are_found_again[a/b]",
        r"test_odd_names_are_found_again[c::d [\xe9]]",
        "test_shaky",
    ]
    assert sorted(re.findall("::(.*)", failed)) == ["test_bad", "test_whose_fixture_fails"]


@pytest.mark.usefixtures("suite")
def test_flaky_tests_alone_do_not_fail_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["-k", "good or shaky"]) == 0
    assert "FLAKY" in capsys.readouterr().out


@pytest.mark.parametrize(("tier", "left_out"), [("fast", 3), ("default", 1), ("thorough", 0)])
def test_each_tier_has_its_tests(suite: Path, tier: str, left_out: int) -> None:
    ended = runner.run(suite, tier, ["-k", "good or odd or shaky or costly"])
    assert ended.outcomes.left_out == left_out
    assert ended.outcomes.counts["passed"] == 5 - left_out


def test_the_default_tier_knows_which_tests_must_not_start_a_service(suite: Path) -> None:
    (suite / "test_them.py").write_text(TIERS)
    ended = runner.run(suite, "default", [])
    assert ended.outcomes.counts["passed"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("broken", first_of(["import os; os._exit(0)", "raise RuntimeError"]))
def test_an_interrupted_run_is_not_a_success(suite: Path, broken: str) -> None:
    (suite / "test_them.py").write_text("def test_good():\n    pass\n")
    assert runner.run(suite, "default", []).complete
    (suite / "test_broken.py").write_text(broken)
    ended = runner.run(suite, "default", [])
    assert ended.outcomes.failures or not ended.complete


@pytest.mark.slow
@pytest.mark.parametrize("bound", first_of(["HANGS_AFTER", "ENDED_AFTER"]))
def test_what_hangs_is_named(suite: Path, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, bound, {"default": 5})
    (suite / "test_them.py").write_text("import time\n\n\ndef test_it():\n    time.sleep(600)\n")
    began = time.monotonic()
    ended = runner.run(suite, "default", [])
    assert time.monotonic() - began < 60 * load()
    assert not ended.outcomes.flaky
    if bound == "HANGS_AFTER":
        assert [name.partition("::")[2] for name in ended.outcomes.failures] == ["test_it"]
    else:
        assert not ended.complete


def test_all_values_but_the_first_are_thorough() -> None:
    first, *others = first_of([1, (2, 3), pytest.param(4, id="four")])
    assert first == 1
    assert [value.values for value in others] == [(2, 3), (4,)]
    assert [value.id for value in others] == [None, "four"]
    assert all(value.marks[-1].name == "thorough" for value in others)


def test_what_killed_runs_left_is_removed(tmp_path: Path) -> None:
    killed, of_a_run, of_a_process, other = (
        tmp_path / name for name in ("perch-a", "perch-b", "perch-c", "other")
    )
    for directory in (killed, of_a_run, of_a_process, other):
        directory.mkdir()
        (directory / "file").touch()
    # A run that has just made its directory may not hold it yet.
    remove_abandoned(tmp_path)
    assert killed.exists()
    wait = [sys.executable, "-c", "input()", str(of_a_process / "data")]
    with (
        held(of_a_run),
        subprocess.Popen(wait, stdin=subprocess.PIPE) as process,
        time_machine.travel(time.time() + 60),
    ):
        remove_abandoned(tmp_path)
        process.communicate(b"\n")
    assert {path.name for path in tmp_path.iterdir()} == {"perch-b", "perch-c", "other"}


def test_a_run_says_that_memory_lacks_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "MEMORY_BYTES", 1 << 60)
    monkeypatch.setattr(
        runner, "run", lambda suite, *_: runner.Run(suite.name, 0, 0, Outcomes(), True)
    )
    assert runner.main(["fast", "runner"]) == 0
    assert "The tests use the disk, which takes longer" in capsys.readouterr().out
