"""A pytest plugin that selects a suite's tests by tier. `tests.__main__` passes the tier; without
one, as when pytest is called for a module, every test runs.

`fast` has only tests that need no running service and are not marked `slow`. `default` leaves out
the tests that are marked `thorough`: they are costly, and a cheaper test of the same kind remains.
"""

import os
from collections.abc import Callable, Container, Generator, Iterable
from typing import Any

import pytest

# Set in the environment while a test of the tier `fast` runs, in every tier: it must not start a
# service.
FAST = "PERCH_TESTS_FAST"
# A test that requests one of these fixtures, directly or through others, waits for a service, a
# browser or a wheel.
SLOW = frozenset({"stack", "state_dir", "service", "small", "computes", "browser", "wheel"})
TIERS = ("fast", "default", "thorough")
# How many tests the tier has left out.
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("selection").addoption("--tier", choices=TIERS, default="thorough")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds; not in the tier `fast`")
    config.addinivalue_line("markers", "thorough: costly; runs in the tier `thorough` only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("tier")
    if tier == "thorough":
        return
    if tier == "fast":
        left_out = keep(config, items, is_fast)
    else:
        left_out = keep(config, items, lambda item: not is_thorough(item))
    config.stash[LEFT_OUT] = left_out
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over the number from a worker of pytest-xdist; all workers select the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def keep(
    config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]
) -> int:
    """Removes the unwanted items; returns how many there were."""
    unwanted = [item for item in items if not wanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if wanted(item)]
    return len(unwanted)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    os.environ.pop(FAST, None)
    if is_fast(item):
        os.environ[FAST] = "1"
    return (yield)


def is_thorough(item: pytest.Item) -> bool:
    return item.get_closest_marker("thorough") is not None


def is_fast(item: pytest.Item) -> bool:
    has_slow_fixture = not SLOW.isdisjoint(getattr(item, "fixturenames", ()))
    is_slow = has_slow_fixture or item.get_closest_marker("slow") is not None
    return not (is_slow or is_thorough(item))


def first_of(values: Iterable[Any], *, count: int = 1) -> list[Any]:
    """The values for `parametrize`: all but the first `count` are for the tier `thorough`."""
    return [
        value if position < count else as_thorough(value) for position, value in enumerate(values)
    ]


def only(kept: Container[Any], values: Iterable[Any]) -> list[Any]:
    """The values for `parametrize`: those that are not `kept` are for the tier `thorough`."""
    return [value if value in kept else as_thorough(value) for value in values]


def as_thorough(value: Any) -> Any:
    """One value for `parametrize`, for the tier `thorough` only."""
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.thorough])
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.thorough)
