"""W3C's trace context, and that traces that nobody wants cost no import."""

import os
import subprocess
import sys

import pytest

from controlplane.traces.context import TraceContext
from tests.support.stack import ROOT

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# What a process of the service does with spans, and then which modules it has.
NOTES = """
import sys
if sys.argv[1] == "without":
    sys.modules["opentelemetry"] = None
from datetime import UTC, datetime
from controlplane.traces import spans
from controlplane.traces.context import TraceContext
now = datetime.now(UTC)
spans.begin("worker")
caller = TraceContext(1, 2, True)
print(spans.is_on(), spans.child_of(caller) == caller, spans.child_of(None))
spans.note("work", caller, None, now, now, about={})
print([name for name, module in sys.modules.items() if module and "opentelemetry" in name])
"""


@pytest.mark.parametrize("flags", ["00", "01", "03", "ff"])
def test_it_works(flags: str) -> None:
    found = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert found == TraceContext(int(TRACE, 16), int(SPAN, 16), flags != "00")
    assert str(found) == f"00-{TRACE}-{SPAN}-{'00' if flags == '00' else '01'}"
    assert found.trace_id == TRACE


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-01") is not None
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-01-more") is not None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}\u0661-{SPAN}-01",
    ],
)
def test_what_is_not_valid_is_ignored(header: str) -> None:
    assert TraceContext.parse(header) is None


@pytest.mark.parametrize(
    ("installed", "wanted"), [("with", False), ("without", True)], ids=["unwanted", "missing"]
)
def test_nothing_is_imported_unless_it_is_installed_and_wanted(
    installed: str, wanted: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != ENDPOINT}
    if wanted:
        environment[ENDPOINT] = "http://127.0.0.1:9"
    ran = subprocess.run(
        [sys.executable, "-c", NOTES, installed],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["False True None", "[]"]
    assert ("install perch-postgres[traces]" in ran.stderr) == wanted
