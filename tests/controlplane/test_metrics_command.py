"""The address in PERCH_METRICS_LISTEN."""

import pytest
from django.core.management.base import CommandError

from controlplane.management.commands.metrics import named, parsed


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
