"""What `python -m tests` says of tests that fail, hold on a second try, or are left out."""

import re
from pathlib import Path

import pytest

from tests.__main__ import Run, main, run

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
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Plugins that no test of it needs take longer to load than it takes to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_them.py").write_text(TESTS)
    return tmp_path


@pytest.fixture
def alone(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests` knows no other suite."""

    def of_the_suite(parts: object, options: list[str]) -> list[Run]:
        return [run("suite", "suite", [str(suite), *options])]

    monkeypatch.setattr("tests.__main__.run_all", of_the_suite)


@pytest.mark.usefixtures("alone")
def test_what_fails_and_then_passes_is_flaky(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    before, _, summary = capsys.readouterr().out.partition("== summary")
    _, shaky, _, _ = before.split("== flaky: ")
    assert "test_shaky, its first failure" in shaky
    assert "lost at first" in shaky
    assert "said at first" in shaky
    counts, _, named = summary.partition("FLAKY")
    assert "1 passed, 5 failed, 1 error" in counts
    flaky, _, failed = named.partition("FAILED")
    assert re.findall("::(.*)", flaky) == [
        *("test_shaky", "test_odd_names_are_found_again[a/b]"),
        r"test_odd_names_are_found_again[c::d [\xe9]]",
    ]
    assert re.findall("::(.*)", failed) == ["test_bad", "test_whose_fixture_fails"]


@pytest.mark.usefixtures("alone")
def test_flaky_tests_alone_fail_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-k", "good or shaky"]) == 0
    assert "FLAKY" in capsys.readouterr().out


def test_what_needs_a_service_is_left_out_and_counted(suite: Path) -> None:
    fast = run("suite", "suite", [str(suite), "--fast", "-k", "good or odd or shaky"])
    assert fast.outcomes.left_out == 2
    assert len(fast.outcomes.failures) == 1


@pytest.mark.parametrize("broken", ["raise RuntimeError", "import os; os._exit(0)"])
def test_a_run_that_does_not_come_to_its_end_is_no_success(suite: Path, broken: str) -> None:
    (suite / "test_broken.py").write_text(broken)
    assert not run("suite", "suite", [str(suite), "-k", "good"]).complete


def test_the_parts_are_the_whole(suite: Path) -> None:
    for number in range(3):
        (suite / f"test_{number}.py").write_text("def test_it(): pass")
    parts = [run("suite", "suite", [str(suite), f"--part={n}/2", "-k", "it"]) for n in (1, 2)]
    assert [part.outcomes.counts for part in parts] == [{"passed": 2}, {"passed": 1}]
