"""A running service, and endpoints of it to connect to."""

from collections.abc import Iterator

import pytest

from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack, stack

__all__ = ["stack"]


@pytest.fixture(scope="module")
def alice(stack: Stack) -> Iterator[Client]:
    """An account. What its tests leave is deleted at the end of the module."""
    client = stack.client()
    yield client
    client.delete_projects()


@pytest.fixture(scope="module")
def shop(stack: Stack, alice: Client) -> Place:
    """An endpoint that the tests of a module share. Each test leaves it usable."""
    return Place.create(stack, alice, name="shop")


@pytest.fixture
def place(stack: Stack, alice: Client) -> Iterator[Place]:
    """An endpoint for one test."""
    made = Place.create(stack, alice)
    yield made
    alice.call("DELETE", made.path)
