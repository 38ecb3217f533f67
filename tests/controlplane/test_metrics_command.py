"""`manage.py metrics`: its address, and what it reads from the host's row."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError

from controlplane import clock
from controlplane.management import host_figures
from controlplane.management.commands.metrics import named, parsed
from controlplane.management.host_figures import HostFigures
from controlplane.models import Host


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:9464", "127.0.0.1", 9464), ("[::1]:80", "::1", 80), ("metrics:1", "metrics", 1)],
)
def test_an_address_is_read(listen: str, host: str, port: int) -> None:
    assert parsed(listen) == (host, port)
    assert named(host, port) == listen


@pytest.mark.parametrize("listen", ["9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x"])
def test_what_is_no_address_is_an_error(listen: str) -> None:
    with pytest.raises(CommandError, match="PERCH_METRICS_LISTEN must be an address and a port"):
        parsed(listen)


def test_the_proxys_problems_are_figures_too(
    host: Host, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HOST_NAME = host.id
    monkeypatch.setattr(host_figures, "is_identity", lambda _: True)
    # It would close the connection with the test's transaction.
    monkeypatch.setattr(host_figures, "close_old_connections", lambda: None)
    host.worker_seen_at = host.proxy_seen_at = clock.now()
    host.problems = [{"name": "disk_nearly_full", "detail": "1 GB is left"}]
    host.proxy_problems = [{"name": "certificate_ends", "detail": "it is valid until tomorrow"}]
    host.save()
    samples = [one for metric in HostFigures(tmp_path).collect() for one in metric.samples]
    found = {one.labels["name"] for one in samples if one.name == "perch_problem"}
    assert found == {"disk_nearly_full", "certificate_ends"}
