"""Every test gets accounts of its own on the one running service."""

from collections.abc import Iterator

import pytest

from tests.controlplane.project import Project
from tests.stack import Client, Stack, stack

__all__ = ["stack"]


@pytest.fixture
def alice(stack: Stack) -> Client:
    return stack.client()


@pytest.fixture
def bob(stack: Stack) -> Client:
    return stack.client()


@pytest.fixture
def free(stack: Stack) -> Client:
    """An account on the free plan."""
    return stack.client(plan="free")


@pytest.fixture
def project(stack: Stack, alice: Client) -> Iterator[Project]:
    """A project of alice's, its endpoint active; deleted afterwards, as its compute costs."""
    made = Project(stack, alice, alice.new_project())
    yield made
    alice.call("DELETE", made.path)


@pytest.fixture(scope="module")
def standing(stack: Stack) -> Iterator[Project]:
    """A project that a module's tests share; they leave it as it was."""
    client = stack.client()
    made = Project(stack, client, client.new_project())
    yield made
    client.call("DELETE", made.path)


@pytest.fixture(scope="module")
def spare_branch_id(standing: Project) -> str:
    """A branch of the shared project that has no endpoint."""
    return standing.new_branch_id()
