"""The dashboard, the alert rules and the documents name the figures that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.metrics import figures
from controlplane.metrics.figures import READ_FROM_HOST
from tests.support.scraped import address, scrape
from tests.support.stack import ROOT, Stack

RULES = ROOT / "deploy" / "prometheus" / "perch-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "perch.json"
NAME = re.compile(r"\bperch_[a-z_]+")
# Names of samples, by the types of their figures.
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum"),
    "gauge": ("",),
}


def samples() -> set[str]:
    """Return the names of all samples that can be served."""
    families = figures.REGISTRY.collect()
    kept = {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}
    return kept | READ_FROM_HOST.keys()


def alerts() -> list[Any]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_every_figure_of_the_alerts_and_the_dashboard_exists() -> None:
    for query in (*queries(), *(alert["expr"] for alert in alerts())):
        named = set(NAME.findall(query))
        assert named or "up{job=" in query, query
        assert named <= samples(), query


def test_the_dashboard_shows_every_figure() -> None:
    shown = {name for query in queries() for name in NAME.findall(query)}
    # Histograms are shown by their buckets or counts.
    stems = {re.sub("_(bucket|count|sum|total)$", "", name) for name in shown}
    assert figures.known_names() | READ_FROM_HOST.keys() <= stems | shown


def test_the_reference_lists_every_figure() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `perch_")]
    listed = {name for row in rows for name in NAME.findall(row)}
    known = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in figures.REGISTRY.collect()
    }
    assert listed == known | READ_FROM_HOST.keys()


def test_a_document_says_what_to_do_about_every_alert() -> None:
    text = (ROOT / "docs" / "how-to" / "observing.md").read_text()
    told = re.findall(r"^\| `(Perch\w+)` \| (.+) \|$", text, re.MULTILINE)
    assert [name for name, _ in told] == [alert["alert"] for alert in alerts()]
    assert all(len(words) > 20 for _, words in told)
    assert all("observing/#alerts" in alert["annotations"]["runbook_url"] for alert in alerts())


@pytest.mark.thorough
def test_promtool_accepts_the_rules_the_configuration_and_the_figures(
    stack: Stack, tmp_path: Path
) -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(RULES.with_name("prometheus.yml")))
    assert address(stack)
    promtool("check", "metrics", text=scrape(stack).text)
    cases = tmp_path / "cases.yml"
    cases.write_text(yaml.safe_dump(CASES))
    promtool("test", "rules", str(cases))


def promtool(*arguments: str, text: str | None = None) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


WOKEN = 'perch_wake_seconds_count{instance="h",outcome="woken"}'
FAILED = 'perch_wake_seconds_count{instance="h",outcome="failed"}'
FIRES = {
    "exp_labels": {"severity": "page", "instance": "h"},
    "exp_annotations": {
        "summary": "more than 5 % of the wakes on h fail",
        "runbook_url": "/how-to/observing/#alerts",
    },
}
# Half of the wakes fail, and then none.
CASES: dict[str, Any] = {
    "rule_files": [str(RULES)],
    "evaluation_interval": "1m",
    "tests": [
        {
            "interval": "1m",
            "input_series": [
                {"series": WOKEN, "values": "0+1x20"},
                {"series": FAILED, "values": values},
            ],
            "alert_rule_test": [
                {"eval_time": "15m", "alertname": "PerchWakesFail", "exp_alerts": fires}
            ],
        }
        for values, fires in (("0+1x20", [FIRES]), ("0x20", []))
    ],
}
