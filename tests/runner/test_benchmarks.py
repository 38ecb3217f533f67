"""CONTRIBUTING.md names every benchmark."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_benchmark_is_named() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paragraph = text.partition("`python -m tests.benchmarks.NAME`")[2].partition("\n\n")[0]
    # Each benchmark begins with its own command; other modules are parts of these.
    found = {
        path.stem
        for path in (ROOT / "tests" / "benchmarks").glob("*.py")
        if path.read_text().startswith(f'"""`python -m tests.benchmarks.{path.stem}')
    }
    assert set(re.findall(r"`(\w+)`", paragraph)) == found
