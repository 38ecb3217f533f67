"""Stores for tests: an S3 server, a service that copies its history there, and a directory."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from moto.server import ThreadedMotoServer

from controlplane.history.store.objects import Bandwidth, Store
from controlplane.history.store.packing import Keyring

KEY = "a passphrase of the tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server at `endpoint`, as "http://127.0.0.1:1234"."""

    endpoint: str
    name: str

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a service that copies its history there."""
        return {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": self.endpoint,
            "PERCH_HISTORY_STORE": f"s3://{self.name}/perch",
            "PERCH_HISTORY_KEY": KEY,
        }

    def through(self, endpoint: str) -> "Bucket":
        """The same bucket behind another server."""
        return Bucket(endpoint, self.name)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str) -> Bucket:
    """A new bucket."""
    name = f"tests-{secrets.token_hex(8)}"
    requests.put(f"{s3}/{name}", timeout=10).raise_for_status()
    return Bucket(s3, name)


@contextmanager
def opened(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, *, key: str = KEY) -> Iterator[Store]:
    """The bucket as the service opens it."""
    with monkeypatch.context() as changed:
        for name, value in bucket.environment.items():
            changed.setenv(name, value)
        changed.setattr("django.conf.settings.HISTORY_STORE_ALLOW_HTTP", True, raising=False)
        yield Store(f"s3://{bucket.name}/perch", Keyring(key, bytes(16)), Bandwidth(None))


def file_store(place: Path) -> Store:
    """A store in the directory `place`."""
    return Store(f"file://{place}", Keyring(KEY, bytes(16)), Bandwidth(None))
