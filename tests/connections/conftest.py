"""A running service, and endpoints of it to connect to."""

from collections.abc import Iterator

import pytest

from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack, deleting_projects, stack

__all__ = ["stack"]


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_projects() -> Iterator[None]:
    with deleting_projects():
        yield


@pytest.fixture(scope="module")
def alice(stack: Stack) -> Client:
    """An account. What its tests leave is deleted at the end of the module."""
    return stack.client()


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
