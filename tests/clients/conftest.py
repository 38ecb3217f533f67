"""A running service, and the clients that users call it with."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients import nodejs
from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack, stack

__all__ = ["stack"]


@pytest.fixture(scope="session")
def node() -> None:
    """Install the clients from npm."""
    try:
        nodejs.install()
    except nodejs.NoNode as error:
        if os.environ.get("PERCH_REQUIRE_BROWSER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def alice(stack: Stack) -> Iterator[Client]:
    """An account. What its tests leave is deleted at the end of the module."""
    client = stack.client()
    yield client
    client.delete_projects()


@pytest.fixture(scope="module")
def shop(stack: Stack, alice: Client) -> Place:
    """A project that the tests of a module share."""
    return Place.create(stack, alice, name="shop")


@dataclass(frozen=True)
class Cli:
    """Neon's own command-line client, configured for this service as users configure it."""

    client: Client
    # The directory of its configuration, in which it also runs.
    home: Path
    # The npm package that contains it.
    package: str = "neonctl"

    def run(self, *arguments: str, timeout: float = 120) -> nodejs.Ran:
        """Run it as it is. Its output is in the form for people."""
        return nodejs.run(
            "node",
            nodejs.program(self.package),
            "--no-analytics",
            "--config-dir",
            self.home / "config",
            *arguments,
            cwd=self.home,
            environment={
                "NEON_API_HOST": self.client.api_url,
                "NEON_API_KEY": self.client.key,
                "HOME": str(self.home),
            },
            timeout=timeout,
        )

    def text(self, *arguments: str) -> str:
        """Return its output. It must succeed."""
        ran = self.run(*arguments)
        assert ran.status == 0, f"{' '.join(arguments)}: {ran.told}{ran.output}"
        return ran.output

    def __call__(self, *arguments: str) -> Any:
        """Return its output for programs. It must succeed."""
        return json.loads(self.text("--output", "json", *arguments))

    def refusal(self, *arguments: str) -> str:
        """Return its error. It must fail."""
        ran = self.run(*arguments)
        assert ran.status != 0, ran.output
        return ran.told


@pytest.fixture
def make_cli(node: None, tmp_path: Path) -> Callable[[Client, str], Cli]:
    def make(client: Client, package: str = "neonctl") -> Cli:
        return Cli(client, tmp_path, package)

    return make


@pytest.fixture
def neonctl(make_cli: Callable[[Client], Cli], shop: Place) -> Callable[..., Any]:
    """The client for the shared project."""
    cli = make_cli(shop.client)
    (cli.home / ".neon").write_text(json.dumps({"projectId": shop.id}))
    return cli
