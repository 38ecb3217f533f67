"""The rules that an endpoint's size and Postgres settings keep."""

from collections.abc import Mapping

from controlplane.compute.configuration import RESERVED_SETTINGS, SETTING_NAME
from controlplane.models import Account
from controlplane.services.errors import Invalid, Unprocessable


def check_limits(account: Account, min_cu: float | None, max_cu: float | None) -> None:
    """Compute units: ordered, and within the account's plan. Raises Invalid, Unprocessable."""
    if min_cu is not None and max_cu is not None and min_cu > max_cu:
        raise Invalid(
            f"autoscaling_limit_min_cu {min_cu:g} is more than autoscaling_limit_max_cu {max_cu:g}"
        )
    wanted = max(min_cu or 0, max_cu or 0)
    if wanted > account.largest_compute:
        raise Unprocessable(
            f'the plan "{account.plan}" allows at most {account.largest_compute:g} compute units '
            f"per endpoint, got {wanted:g}",
            code="COMPUTE_UNITS_LIMIT_EXCEEDED",
        )


def check_pg_settings(pg_settings: Mapping[str, str]) -> None:
    """Only names that may be set at all; Postgres itself judges the values. Raises Invalid,
    Unprocessable."""
    for name, value in pg_settings.items():
        if not SETTING_NAME.fullmatch(name):
            raise Invalid(f'"{name}" is not the name of a Postgres setting')
        if name.lower() in RESERVED_SETTINGS:
            raise Unprocessable(f'the setting "{name}" belongs to the platform')
        if "\0" in value:
            raise Invalid(f'the value of "{name}" holds a NUL character')
