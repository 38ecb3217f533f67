"""A pytest plugin that writes the outcome of each test to a file, and the reader of that file."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from tests.selection import LEFT_OUT

COUNTED = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


@dataclass
class Outcomes:
    """The outcomes of one run of pytest. Tests are named as on its command line."""

    counts: dict[str, int] = field(default_factory=dict)
    # pytest's full report of each test that failed, or whose fixtures did.
    failures: dict[str, str] = field(default_factory=dict)
    # The same from the first run of each test that failed and then passed, and of each that failed
    # again, which may be for another reason.
    flaky: dict[str, str] = field(default_factory=dict)
    failed_before: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: int = 0

    @classmethod
    def read(cls, path: Path) -> "Outcomes | None":
        """Return the outcomes; None if pytest died before it could write them."""
        return cls(**json.loads(path.read_text())) if path.exists() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("outcomes").addoption("--outcomes", metavar="FILE", help="write them here")


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    path: str | None = config.getoption("outcomes")
    if path is None:
        return
    stats = terminalreporter.stats
    outcomes = Outcomes(
        counts={name: len(stats[name]) for name in COUNTED if stats.get(name)},
        left_out=config.stash.get(LEFT_OUT, 0),
    )
    for report in (*stats.get("failed", ()), *stats.get("error", ())):
        name = full_name(report.nodeid, config)
        # A test and the teardown of its fixtures may both fail.
        outcomes.failures[name] = outcomes.failures.get(name, "") + in_full(report)
    for report in stats.get("rerun", ()):
        name = full_name(report.nodeid, config)
        first = outcomes.failed_before if name in outcomes.failures else outcomes.flaky
        first[name] = in_full(report)
    for report in stats.get("skipped", ()):
        outcomes.skipped[full_name(report.nodeid, config)] = str(report.longrepr[2])
    Path(path).write_text(json.dumps(asdict(outcomes)))


def full_name(nodeid: str, config: pytest.Config) -> str:
    """Return the test's name relative to the directory in which pytest was started."""
    suite = os.path.relpath(config.rootpath, config.invocation_params.dir)
    return nodeid if suite == os.curdir else f"{suite}/{nodeid}"


def in_full(report: Any) -> str:
    """Return its traceback, then everything that it wrote and logged."""
    parts = [f"-- {getattr(report, 'when', 'collection')} --\n{report.longreprtext}"]
    parts += [f"-- {title} --\n{content}" for title, content in report.sections]
    return "\n".join(parts) + "\n"
