"""How the attributes of an endpoint that callers choose (`models.ATTRIBUTES`) are assigned and
validated.

All code that creates or changes an endpoint at a caller's request uses `assign_attributes` and
`check_endpoint`.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.compute.settings.configuration import SETTING_NAME
from controlplane.compute.settings.pooler_settings import (
    ALLOWED,
    pooler_complaint,
    pooler_exceeds_size,
    version_of,
)
from controlplane.compute.settings.postgres_settings import complaint, exceeds_size, from_json
from controlplane.models import ATTRIBUTES, Endpoint, PostgresSettings, Project
from controlplane.services.errors import (
    FieldError,
    Invalid,
    Unprocessable,
    refuse_fields,
    refused_field,
)
from controlplane.services.rules.placement import fits, largest_endpoint

# The largest object that is stored as JSON, in bytes of UTF-8 without spaces. It is limited because
# every response contains it.
MAX_JSON_BYTES = 16 << 10
MAX_PG_SETTINGS = 200
# The names that `pgbouncer_settings` may contain.
POOLER_SETTINGS = tuple(ALLOWED)
MAX_PG_SETTING_LENGTH = 2000
# How many characters of a caller's name an error message shows.
MAX_NAME_LENGTH = 200
MAX_CU = "autoscaling_limit_max_cu"


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """An endpoint's `settings` as a caller sends them; None for what was not sent.

    They are merged at their top level: a map that was not sent stays as it is, so an empty object
    changes nothing. A map that was sent replaces the stored one as a whole, because clients of this
    API send all of its entries, and because there is no other way to remove an entry.
    """

    pg_settings: Mapping[str, str] | None = None
    pgbouncer_settings: Mapping[str, str] | None = None


def merged_settings(stored: Mapping[str, Any], sent: EndpointSettings | None) -> dict[str, Any]:
    """The settings to store after a request `sent` these."""
    if sent is None:
        return dict(stored)
    merged = dict(stored)
    if sent.pg_settings is not None:
        merged["pg_settings"] = dict(sent.pg_settings)
    if sent.pgbouncer_settings is not None:
        merged["pgbouncer_settings"] = dict(sent.pgbouncer_settings)
        if not sent.pgbouncer_settings:
            del merged["pgbouncer_settings"]
    return merged


def settings_over(defaults: EndpointSettings, own: EndpointSettings | None) -> EndpointSettings:
    """A new endpoint's settings: its own, and the project's defaults for names that it does not
    set."""
    own = own or EndpointSettings()
    return EndpointSettings(
        pg_settings={**(defaults.pg_settings or {}), **(own.pg_settings or {})},
        pgbouncer_settings={
            **(defaults.pgbouncer_settings or {}),
            **(own.pgbouncer_settings or {}),
        },
    )


def check_limits(project: Project, min_cu: float, max_cu: float) -> None:
    """Validate compute units: the minimum is not larger than the maximum, and the maximum is within
    the account's plan and what a host of the region has. Raises Invalid, Unprocessable."""
    account = project.account
    if min_cu > max_cu:
        raise Invalid(
            f"autoscaling_limit_min_cu {min_cu:g} is more than autoscaling_limit_max_cu {max_cu:g}",
            fields=["autoscaling_limit_min_cu", MAX_CU],
        )
    if max_cu > account.largest_compute:
        raise Unprocessable(
            f'the plan "{account.plan}" allows at most {account.largest_compute:g} compute units '
            f"per endpoint, got {max_cu:g}",
            code="COMPUTE_UNITS_LIMIT_EXCEEDED",
            fields=[MAX_CU],
        )
    if not fits(project, max_cu):
        raise Unprocessable(
            f'the largest host of the region "{project.region_id}" has room for an endpoint of at '
            f"most {largest_endpoint(project):g} compute units, got {max_cu:g}",
            code="COMPUTE_UNITS_LIMIT_EXCEEDED",
            fields=[MAX_CU],
        )


def check_pg_settings(endpoint: Endpoint) -> None:
    """Validate the number of settings, and that an endpoint of this size may have each of them
    (`compute.settings.postgres_settings`).

    Raises Invalid, Unprocessable.
    """
    pg_settings = endpoint.settings.get("pg_settings", {})
    if len(pg_settings) > MAX_PG_SETTINGS:
        raise Unprocessable(
            f"pg_settings may have at most {MAX_PG_SETTINGS} settings, got {len(pg_settings)}",
            fields=["settings.pg_settings"],
        )
    for name, value in pg_settings.items():
        fields = [f"settings.pg_settings.{name}"]
        if not SETTING_NAME.fullmatch(name):
            raise Invalid(f'"{name}" is not the name of a Postgres setting', fields=fields)
        if len(value) > MAX_PG_SETTING_LENGTH:
            raise Unprocessable(
                f'the value of "{name}" may have at most {MAX_PG_SETTING_LENGTH} '
                f"characters, got {len(value)}",
                fields=fields,
            )
        if "\0" in value:
            raise Invalid(f'the value of "{name}" contains a NUL character', fields=fields)
    refuse_fields(_complaints(complaint, endpoint))


def check_pgbouncer_settings(endpoint: Endpoint) -> None:
    """Validate that the pooler of an endpoint of this size may have each of the settings
    (`compute.settings.pooler_settings`). Raises Unprocessable."""
    host = endpoint.project.host
    chosen = endpoint.settings.get("pgbouncer_settings", {})
    size, version = endpoint.autoscaling_limit_max_cu, version_of(host.pooler_version)
    refuse_fields(
        FieldError(f"settings.pgbouncer_settings.{name[:MAX_NAME_LENGTH]}", words)
        for name, value in chosen.items()
        if (words := pooler_complaint(name, value, max_cu=size, version=version))
    )
    if chosen and not host.pooling_available:
        raise refused_field(
            "settings.pgbouncer_settings",
            f'pooling is not available on the host "{host.id}": '
            "PgBouncer is not installed on its host",
        )


def check_settings_fit(endpoint: Endpoint) -> None:
    """Validate that the endpoint's stored settings fit its changed size. Raises Unprocessable."""
    size = endpoint.autoscaling_limit_max_cu
    of_pooler = endpoint.settings.get("pgbouncer_settings", {})
    found = [
        *_complaints(exceeds_size, endpoint),
        *(
            FieldError(f"settings.pgbouncer_settings.{name}", words)
            for name, value in of_pooler.items()
            if (words := pooler_exceeds_size(name, value, max_cu=size))
        ),
    ]
    # The settings were sent earlier. What this request has is the size.
    refuse_fields([*found, *(FieldError(MAX_CU, f"{one.field}: {one.message}") for one in found)])


def _complaints(judge: Callable[..., str | None], endpoint: Endpoint) -> Iterator[FieldError]:
    """What is wrong with each of the endpoint's Postgres settings."""
    pg_settings = endpoint.settings.get("pg_settings", {})
    if not pg_settings:
        return
    known = from_json(PostgresSettings.known_to(endpoint.project))
    size = endpoint.autoscaling_limit_max_cu
    storage = endpoint.project.account.branch_size_limit
    for name, value in pg_settings.items():
        words = judge(name, value, max_cu=size, storage=storage, known=known)
        if words:
            yield FieldError(f"settings.pg_settings.{name}", words)


def check_json_size(name: str, value: Mapping[str, Any]) -> None:
    """Raises Unprocessable if the object, as it would be stored, is too large."""
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_JSON_BYTES:
        raise Unprocessable(
            f"{name} may have at most {MAX_JSON_BYTES} bytes of JSON, got {size}", fields=[name]
        )


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
