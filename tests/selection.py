"""A pytest plugin: which of a suite's tests run. `tests.__main__` gives its options."""

import os
from collections.abc import Callable, Sequence

import pytest

# Set in the environment while the fast tests run: nothing may start a service.
FAST = "PERCH_TESTS_FAST"
# Who asks for one of these fixtures, through others or itself, waits for a service or a wheel.
SLOW = frozenset({"stack", "state_dir", "service", "small", "computes", "browser", "wheel"})
# How many tests `--fast` has left out.
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--fast", action="store_true", help="leave out what waits for a service")
    group.addoption("--part", metavar="NUMBER/COUNT", help="only every COUNT-th module")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("fast"):
        os.environ[FAST] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part: str | None = config.getoption("part")
    if part is not None:
        number, count = map(int, part.split("/"))
        own = modules_of(items)[number - 1 :: count]
        keep(config, items, lambda item: str(item.path) in own)
    if config.getoption("fast"):
        config.stash[LEFT_OUT] = keep(config, items, lambda item: not is_slow(item))


def keep(
    config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]
) -> int:
    """Leave only the wanted; returns how many were not."""
    unwanted = [item for item in items if not wanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if wanted(item)]
    return len(unwanted)


def modules_of(items: Sequence[pytest.Item]) -> list[str]:
    return sorted({str(item.path) for item in items})


def is_slow(item: pytest.Item) -> bool:
    return not SLOW.isdisjoint(getattr(item, "fixturenames", ()))
