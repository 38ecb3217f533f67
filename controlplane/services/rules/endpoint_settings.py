"""The rules for an endpoint's size and settings, and how new settings are merged with stored
ones."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.compute.settings.configuration import SETTING_NAME
from controlplane.compute.settings.pooler_settings import (
    ALLOWED,
    pooler_complaint,
    pooler_exceeds_size,
    version_of,
)
from controlplane.compute.settings.postgres_settings import complaint, exceeds_size, from_json
from controlplane.models import Endpoint, PostgresSettings, Project
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
