"""Every allowed Postgres setting at its extremes, many at once. `settings_extremes` tries each
alone."""

from collections.abc import Iterator

import pytest

from tests.controlplane.settings_extremes import Case, cases, culprits, host

SIZE = 0.25


@pytest.fixture(scope="module")
def every_case() -> Iterator[list[Case]]:
    with host():
        yield list(cases(SIZE))


@pytest.mark.thorough
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_compute_serves_the_platform_with_every_setting_at_an_extreme(
    every_case: list[Case], last: bool
) -> None:
    """First the least or first value of each, then the greatest or last."""
    in_order = every_case if last else reversed(every_case)
    assert culprits({case.name: case.value for case in in_order}, SIZE) == []
