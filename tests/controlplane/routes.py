"""Every route of the API, read from the document that it publishes about itself."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import requests

from tests.support.client import Client

# A body that each route accepts. Routes that are not listed take none.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/projects"): {"project": {}},
    ("PATCH", "/projects/{project_id}"): {"project": {"name": "taken over"}},
    ("POST", "/projects/{project_id}/branches"): {"branch": {"name": "taken over"}},
    ("PATCH", "/projects/{project_id}/branches/{branch_id}"): {"branch": {"name": "taken over"}},
    ("POST", "/projects/{project_id}/branch_anonymized"): {
        "branch_create": {"branch": {"name": "taken over"}}
    },
    ("PATCH", "/projects/{project_id}/branches/{branch_id}/masking_rules"): {"masking_rules": []},
    ("POST", "/projects/{project_id}/branches/{branch_id}/restore"): {
        "source_branch_id": "br-no-where-123456"
    },
    ("POST", "/projects/{project_id}/branches/{branch_id}/finalize_restore"): {"name": "old"},
    ("POST", "/projects/{project_id}/branches/{branch_id}/time_travel"): {"lsn": "0/1"},
    ("PATCH", "/projects/{project_id}/snapshots/{snapshot_id}"): {"snapshot": {"name": "taken"}},
    ("POST", "/projects/{project_id}/endpoints"): {
        "endpoint": {"branch_id": "br-no-where-123456", "type": "read_write"}
    },
    ("PATCH", "/projects/{project_id}/endpoints/{endpoint_id}"): {"endpoint": {"disabled": True}},
    ("POST", "/projects/{project_id}/branches/{branch_id}/roles"): {"role": {"name": "mallory"}},
    ("POST", "/projects/{project_id}/branches/{branch_id}/databases"): {
        "database": {"name": "taken", "owner_name": "neondb_owner"}
    },
    ("PATCH", "/projects/{project_id}/branches/{branch_id}/databases/{database_name}"): {
        "database": {"name": "taken"}
    },
    ("POST", "/api_keys"): {"key_name": "mine now"},
    ("POST", "/accounts"): {"account": {"name": "taken over"}},
    ("PATCH", "/accounts/{account_id}"): {"account": {"plan": "unlimited"}},
    ("POST", "/accounts/{account_id}/api_keys"): {"key_name": "mine now"},
    ("POST", "/organizations/{org_id}/api_keys"): {"key_name": "mine now"},
    ("POST", "/projects/{project_id}/move"): {"host_id": "h2"},
    ("POST", "/webhooks"): {"webhook": {"url": "https://hooks.example/", "event_types": ["*"]}},
    ("PATCH", "/status/hosts/{host_id}"): {"host": {"draining": False}},
    ("PATCH", "/webhooks/{webhook_id}"): {"webhook": {"enabled": False}},
    ("POST", "/webhooks/{webhook_id}/rotate_secret"): {"webhook": {"secret": "whsec_" + "A" * 32}},
}
NOW = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
HISTORY = f"?from={NOW}&to={NOW}&granularity=daily"
QUERIES = {
    "/projects/{project_id}/branches/{branch_id}/schema": "?db_name=neondb",
    "/projects/{project_id}/branches/{branch_id}/compare_schema": (
        "?db_name=neondb&base_branch_id={branch_id}"
    ),
    "/projects/{project_id}/branches/{branch_id}/history/resolve": "?timestamp={now}",
    "/projects/{project_id}/connection_uri": "?database_name=neondb&role_name=neondb_owner",
    "DELETE /accounts/{account_id}": "?name=local",
    "/consumption_history/account": HISTORY,
    "/consumption_history/projects": HISTORY,
    "/consumption_history/v2/projects": f"{HISTORY}&metrics=compute_unit_seconds",
}


def query_of(method: str, template: str) -> str:
    return QUERIES.get(f"{method} {template}") or QUERIES.get(template, "")


@dataclass(frozen=True)
class Route:
    method: str
    template: str

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def is_for_operators(self) -> bool:
        is_move = self.template == "/projects/{project_id}/move"
        return is_move or self.template.startswith(("/accounts", "/status/hosts"))

    @property
    def body(self) -> Any:
        return BODIES.get((self.method, self.template))

    @property
    def names(self) -> list[str]:
        """The names of the parameters in the path."""
        return re.findall(r"\{(\w+)\}", self.template)

    def path(self, **ids: str) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (self.template + query_of(self.method, self.template)).format(now=now, **ids)

    def call(self, client: Client, **ids: str) -> requests.Response:
        return client.call(self.method, self.path(**ids), json=self.body)


def all_routes(api_url: str) -> list[Route]:
    document = requests.get(f"{api_url}/openapi.json", timeout=10).json()
    routes = []
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            route = Route(method.upper(), path)
            needs_body = described.get("requestBody", {}).get("required", False)
            assert route.body is not None or not needs_body, f"no body for {route}"
            routes.append(route)
    return routes
