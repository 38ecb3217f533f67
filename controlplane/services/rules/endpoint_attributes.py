"""How the attributes of an endpoint that callers choose (`models.ATTRIBUTES`) are assigned and
validated.

All code that creates or changes an endpoint at a caller's request uses `assign_attributes` and
`check_endpoint`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.models import ATTRIBUTES, Endpoint, Project
from controlplane.services.errors import Unprocessable
from controlplane.services.rules.endpoint_settings import (
    EndpointSettings,
    check_json_size,
    check_limits,
    check_pg_settings,
    check_pgbouncer_settings,
    check_settings_fit,
    merged_settings,
    settings_over,
)
from controlplane.services.rules.placement import fits, largest_endpoint

SIZES = ("autoscaling_limit_min_cu", "autoscaling_limit_max_cu")
# The attributes that a project's `default_endpoint_settings` may have.
IN_DEFAULTS = tuple(one.name for one in ATTRIBUTES.values() if one.in_defaults)


@dataclass(frozen=True, kw_only=True)
class EndpointAttributes:
    """What a request asks of an endpoint, new or existing, or of a project's future endpoints."""

    # The values of the attributes that were sent, by name, except `settings`.
    chosen: Mapping[str, Any] = field(default_factory=dict)
    settings: EndpointSettings | None = None
    # Cannot be chosen: any other region than the project's is refused.
    region_id: str | None = None


def assign_attributes(endpoint: Endpoint, requested: EndpointAttributes) -> dict[str, Any]:
    """Assign the attributes that were sent to the endpoint, without saving it.

    Returns the previous values of the attributes that changed, by name. Raises Unprocessable for
    another region than the project's.
    """
    _refuse_another_region(endpoint.project, requested.region_id)
    was = {name: getattr(endpoint, name) for name in ATTRIBUTES}
    for name, value in requested.chosen.items():
        setattr(endpoint, name, value)
    endpoint.settings = merged_settings(endpoint.settings, requested.settings)
    return {name: value for name, value in was.items() if getattr(endpoint, name) != value}


def check_endpoint(endpoint: Endpoint, changed: Collection[str]) -> None:
    """Validate the attributes of the endpoint whose names are in `changed`. Raises Invalid,
    Unprocessable.

    Attributes that did not change are not validated again. So an endpoint can be renamed or
    disabled, even if the account's plan has become too small for it since.
    """
    project = endpoint.project
    if not set(SIZES).isdisjoint(changed):
        check_limits(project, endpoint.autoscaling_limit_min_cu, endpoint.autoscaling_limit_max_cu)
    if "settings" in changed:
        check_json_size("settings", endpoint.settings)
        check_pg_settings(endpoint)
        check_pgbouncer_settings(endpoint)
    elif "autoscaling_limit_max_cu" in changed:
        check_settings_fit(endpoint)
    if (
        "pooler_enabled" in changed
        and endpoint.pooler_enabled
        and not project.host.pooling_available
    ):
        raise Unprocessable(
            f'pooling is not available on the host "{project.host_id}": '
            "PgBouncer is not installed on its host",
            fields=["pooler_enabled"],
        )


def merged_defaults(stored: Mapping[str, Any], sent: EndpointAttributes) -> dict[str, Any]:
    """The new value of a project's `default_endpoint_settings` after a request `sent` these. They
    are merged by the same rule as an endpoint's settings."""
    return merged_settings({**stored, **sent.chosen}, sent.settings)


def defaults_of(project: Project) -> EndpointAttributes:
    """The project's defaults for new endpoints."""
    stored = project.default_endpoint_settings
    chosen = {name: stored[name] for name in IN_DEFAULTS if name in stored}
    return EndpointAttributes(
        chosen={**chosen, "provisioner": project.provisioner},
        settings=EndpointSettings(
            pg_settings=stored.get("pg_settings"),
            pgbouncer_settings=stored.get("pgbouncer_settings"),
        ),
    )


def with_defaults(project: Project, requested: EndpointAttributes) -> EndpointAttributes:
    """The attributes of a new endpoint of the project: those asked for, and the project's defaults
    for all others. Settings are merged by their names.

    A default size that no host of the region has any more is lowered to what the largest one has,
    because the request did not ask for it.
    """
    defaults = defaults_of(project)
    assert defaults.settings is not None
    too_large = [one for one in SIZES if not fits(project, defaults.chosen.get(one, 0))]
    lowered = {name: largest_endpoint(project) for name in too_large}
    return replace(
        requested,
        chosen={**defaults.chosen, **lowered, **requested.chosen},
        settings=settings_over(defaults.settings, requested.settings),
    )


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
            "for one elsewhere, create a project there",
            fields=["region_id"],
        )
