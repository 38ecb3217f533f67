"""The wheel, and environments in which it is installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.installation import Installation, build_wheel, install
from tests.support.stack import new_state_dir, stack, state_dir

__all__ = ["stack", "state_dir"]


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    # As root, the account of the computes must reach everything below.
    with new_state_dir() as directory:
        yield directory


@pytest.fixture(scope="session")
def wheel(place: Path) -> Path:
    return build_wheel(place)


@pytest.fixture(scope="session")
def console_alone(wheel: Path, place: Path) -> Installation:
    """The wheel without extras."""
    return install(wheel, place / "console")


@pytest.fixture(scope="session")
def whole(wheel: Path, place: Path) -> Installation:
    """The wheel with the extra `controlplane`."""
    return install(wheel, place / "whole", "controlplane")
