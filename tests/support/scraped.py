"""Reads a service's figures as Prometheus does."""

from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.stack import Stack


class Figures:
    """The figures of one answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def total(self, name: str, **labels: Any) -> float:
        """Return the sum of the samples with this name and these labels."""
        wanted = {label: str(value) for label, value in labels.items()}.items()
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and wanted <= sample.labels.items()
        )


def address(stack: Stack) -> str:
    return (stack.state_dir / "metrics-address").read_text().strip()


def scrape(stack: Stack) -> Figures:
    answer = requests.get(address(stack), timeout=10)
    assert answer.status_code == 200, answer.text
    return Figures(answer.text)
