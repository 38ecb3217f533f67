"""A running service, and endpoints of it to connect to."""

from collections.abc import Iterator

import pytest

from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack, stack, state_dir

__all__ = ["stack", "state_dir"]


@pytest.fixture(scope="module")
def alice(stack: Stack) -> Iterator[Client]:
    """An account; what it has left behind goes at the end of the module."""
    client = stack.client()
    yield client
    for project in client.get("/projects", limit=400)["projects"]:
        client.delete(f"/projects/{project['id']}")


@pytest.fixture(scope="module")
def shop(stack: Stack, alice: Client) -> Place:
    """An endpoint that the tests of a module share: each finds it, and leaves it, in order."""
    return Place.create(stack, alice, name="shop")


@pytest.fixture
def place(stack: Stack, alice: Client) -> Iterator[Place]:
    """An endpoint of a test's own."""
    made = Place.create(stack, alice)
    yield made
    alice.call("DELETE", made.path)
