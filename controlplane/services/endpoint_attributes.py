"""The attributes of an endpoint that callers choose: how they are assigned and validated.

All code that creates or changes an endpoint at a caller's request uses `assign_attributes` and
`check_endpoint`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from controlplane.models import Endpoint, Project
from controlplane.services.endpoint_settings import (
    EndpointSettings,
    check_json_size,
    check_limits,
    check_pg_settings,
    check_pgbouncer_settings,
    check_settings_fit,
    merged_settings,
    settings_over,
)
from controlplane.services.errors import Unprocessable

T = TypeVar("T")

# The attributes that a caller may choose. Requests and rows have the same names for them.
ATTRIBUTES = (
    "name",
    "autoscaling_limit_min_cu",
    "autoscaling_limit_max_cu",
    "settings",
    "pooler_enabled",
    "pooler_mode",
    "disabled",
    "passwordless_access",
    "provisioner",
    "suspend_timeout_seconds",
)


@dataclass(frozen=True, kw_only=True)
class EndpointAttributes:
    """What a request asks of an endpoint, new or existing; None for what was not sent."""

    name: str | None = None
    # In compute units.
    autoscaling_limit_min_cu: float | None = None
    autoscaling_limit_max_cu: float | None = None
    settings: EndpointSettings | None = None
    pooler_enabled: bool | None = None
    pooler_mode: str | None = None
    disabled: bool | None = None
    passwordless_access: bool | None = None
    provisioner: str | None = None
    # Idle seconds; 0: the server's default; -1: never.
    suspend_timeout_seconds: int | None = None
    # Cannot be chosen: any other region than the project's is refused.
    region_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndpointDefaults:
    """What a request asks of a project's future endpoints; None for what was not sent."""

    autoscaling_limit_min_cu: float | None = None
    autoscaling_limit_max_cu: float | None = None
    suspend_timeout_seconds: int | None = None
    pg_settings: Mapping[str, str] | None = None
    pgbouncer_settings: Mapping[str, str] | None = None


def assign_attributes(endpoint: Endpoint, asked: EndpointAttributes) -> dict[str, Any]:
    """Assign the attributes that were sent to the endpoint, without saving it.

    Returns the previous values of the attributes that changed, by name. Raises Unprocessable for
    another region than the project's.
    """
    _refuse_another_region(endpoint.project, asked.region_id)
    was = {name: getattr(endpoint, name) for name in ATTRIBUTES}
    endpoint.name = _sent(asked.name, endpoint.name)
    endpoint.autoscaling_limit_min_cu = _sent(
        asked.autoscaling_limit_min_cu, endpoint.autoscaling_limit_min_cu
    )
    endpoint.autoscaling_limit_max_cu = _sent(
        asked.autoscaling_limit_max_cu, endpoint.autoscaling_limit_max_cu
    )
    endpoint.settings = merged_settings(endpoint.settings, asked.settings)
    endpoint.pooler_enabled = _sent(asked.pooler_enabled, endpoint.pooler_enabled)
    endpoint.pooler_mode = _sent(asked.pooler_mode, endpoint.pooler_mode)
    endpoint.disabled = _sent(asked.disabled, endpoint.disabled)
    endpoint.passwordless_access = _sent(asked.passwordless_access, endpoint.passwordless_access)
    endpoint.provisioner = _sent(asked.provisioner, endpoint.provisioner)
    endpoint.suspend_timeout_seconds = _sent(
        asked.suspend_timeout_seconds, endpoint.suspend_timeout_seconds
    )
    return {name: value for name, value in was.items() if getattr(endpoint, name) != value}


def check_endpoint(endpoint: Endpoint, changed: Collection[str]) -> None:
    """Validate the attributes of the endpoint whose names are in `changed`. Raises Invalid,
    Unprocessable.

    Attributes that did not change are not validated again. So an endpoint can be renamed or
    disabled, even if the account's plan has become too small for it since.
    """
    project = endpoint.project
    if "autoscaling_limit_min_cu" in changed or "autoscaling_limit_max_cu" in changed:
        check_limits(
            project.account, endpoint.autoscaling_limit_min_cu, endpoint.autoscaling_limit_max_cu
        )
    if "settings" in changed:
        check_json_size("settings", endpoint.settings)
        check_pg_settings(endpoint)
        check_pgbouncer_settings(endpoint)
    elif "autoscaling_limit_max_cu" in changed:
        check_settings_fit(endpoint)
    if (
        "pooler_enabled" in changed
        and endpoint.pooler_enabled
        and not project.region.pooling_available
    ):
        raise Unprocessable(
            f'pooling is not available in the region "{project.region_id}": '
            "PgBouncer is not installed on its host"
        )


def merged_defaults(stored: Mapping[str, Any], sent: EndpointDefaults) -> dict[str, Any]:
    """The new value of a project's `default_endpoint_settings` after a request `sent` these. They
    are merged by the same rule as an endpoint's settings."""
    given = {
        "autoscaling_limit_min_cu": sent.autoscaling_limit_min_cu,
        "autoscaling_limit_max_cu": sent.autoscaling_limit_max_cu,
        "suspend_timeout_seconds": sent.suspend_timeout_seconds,
        "pg_settings": None if sent.pg_settings is None else dict(sent.pg_settings),
        "pgbouncer_settings": (
            None if sent.pgbouncer_settings is None else dict(sent.pgbouncer_settings)
        ),
    }
    merged = {**stored, **{name: value for name, value in given.items() if value is not None}}
    if not merged.get("pgbouncer_settings"):
        merged.pop("pgbouncer_settings", None)
    return merged


def defaults_of(project: Project) -> EndpointAttributes:
    """The project's defaults for new endpoints."""
    stored = project.default_endpoint_settings
    return EndpointAttributes(
        autoscaling_limit_min_cu=stored.get("autoscaling_limit_min_cu"),
        autoscaling_limit_max_cu=stored.get("autoscaling_limit_max_cu"),
        suspend_timeout_seconds=stored.get("suspend_timeout_seconds"),
        provisioner=project.provisioner,
        settings=EndpointSettings(
            pg_settings=stored.get("pg_settings"),
            pgbouncer_settings=stored.get("pgbouncer_settings"),
        ),
    )


def with_defaults(project: Project, asked: EndpointAttributes) -> EndpointAttributes:
    """The attributes of a new endpoint of the project: those asked for, and the project's defaults
    for all others. Settings are merged by their names."""
    defaults = defaults_of(project)
    given = {name: value for name, value in vars(asked).items() if value is not None}
    assert defaults.settings is not None
    given["settings"] = settings_over(defaults.settings, asked.settings)
    return replace(defaults, **given)


def check_defaults(project: Project) -> None:
    """Validate that an endpoint can be created with the project's defaults alone. Raises Invalid,
    Unprocessable."""
    check_json_size("default_endpoint_settings", project.default_endpoint_settings)
    typical = Endpoint(project=project, settings={"pg_settings": {}})
    assign_attributes(typical, defaults_of(project))
    check_endpoint(typical, ATTRIBUTES)


def _refuse_another_region(project: Project, region_id: str | None) -> None:
    if region_id not in (None, project.region_id):
        raise Unprocessable(
            f'region_id: the endpoint must be in its project\'s region "{project.region_id}"; '
            "for one elsewhere, create a project there"
        )


def _sent(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value
