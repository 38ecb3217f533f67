"""A request that is valid by the document is not refused for a limit that the document lacks."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from django.test import Client as DjangoClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from controlplane.models import Account, Branch, Endpoint, Host
from tests.controlplane.rows import make_project, make_snapshot, make_webhook

pytestmark = pytest.mark.slow

# What no schema can express: which resources exist, other fields, the present time, the bytes of a
# text, what the Postgres in use accepts.
BEYOND_SCHEMAS = (
    "in the past",
    "must be in the future",
    "to is before from",
    "invalid cursor",
    "invalid url",
    "not found",
    "does not exist",
    "at most 63 bytes are allowed",
    "16,384 characters are allowed in total",
    "not a range of addresses",
    "has no parent",
    "has no history",
    "is no position in the log",
    "lsn, not both",
    "send timestamp or lsn",
    "is in the future",
    "is more than 14 days ago",
    "both set the branch's expiry",
    "default branch cannot expire",
    " stays with ",
    "stays in its region",
    "must be in its project's region",
    "is more than autoscaling_limit_max_cu",
    "the plan ",
    "finalize_restore",
    "settings must not be nil",
    "settings.pg_settings",
    "settings.pgbouncer_settings",
)
# For each call.
EXAMPLES = 5


@pytest.mark.thorough
def test_no_valid_request_is_refused_for_a_limit(
    api: DjangoClient, account: Account, host: Host
) -> None:
    document = api.get("/api/v2/openapi.json").json()
    project = make_project(account, host)
    ids = {
        "project_id": project.id,
        "branch_id": Branch.objects.get(project=project, hidden=False).id,
        "endpoint_id": Endpoint.objects.get(project=project).id,
        "snapshot_id": str(make_snapshot(project).id),
        "webhook_id": str(make_webhook(account).id),
        "org_id": account.organization_id,
    }
    refused: dict[str, Any] = {}
    tried: set[str] = set()

    def send(case: Any) -> None:
        path = case.path.format(**{name: ids.get(name, "1") for name in case.path_parameters})
        # A request that waits takes its time.
        sent = {name: 0 if name == "wait" else one for name, one in (case.query or {}).items()}
        query = urlencode(sent, doseq=True)
        body = json.dumps(case.body) if isinstance(case.body, dict | list) else ""
        response = api.generic(
            case.method, f"/api/v2{path}?{query}", body, content_type="application/json"
        )
        tried.add(f"{case.method} {case.path}")
        if response.status_code in (400, 422):
            message = response.json()["message"]
            if not any(words in message for words in BEYOND_SCHEMAS):
                refused[f"{case.method} {case.path} {message[:200]}"] = query, body[:300]

    configured = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    operations: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    for found in operations:
        operation = found.ok()
        # A DELETE has only ids, and no worker reads logs and sessions.
        if operation.method.upper() != "DELETE" and not operation.path.endswith(
            ("/logs", "/sessions")
        ):
            tried_with: Any = given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
            configured(tried_with(send))()
    assert not refused, "\n".join(refused)
    assert len(tried) > 60
