"""The document's examples are true: its requests are accepted, and its errors are as described."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.api.document.glossary import BRANCH_ID, ENDPOINT_ID, PARENT_ID, PROJECT_ID
from controlplane.api.responses.organizations import members_of
from controlplane.models import (
    Account,
    ApiKey,
    Branch,
    Database,
    Endpoint,
    HistoryChain,
    Host,
    Masking,
    Operation,
    Plan,
    Project,
    Role,
)
from tests.controlplane.api.test_document import METHODS, validator
from tests.controlplane.rows import make_host, make_project, make_snapshot, make_webhook

JSON = "application/json"


@pytest.fixture
def document(api: DjangoClient) -> Any:
    return api.get("/api/v2/openapi.json").json()


@pytest.fixture
def ids(account: Account, host: Host) -> dict[str, str]:
    """A project without work in progress, whose branches include one without an endpoint."""
    project = make_project(account, host, size=2)
    branch = Branch.objects.filter(project=project, default=False)[0]
    bare = Branch.objects.create(project=project, name="bare", current_state="ready")
    for one in (branch, bare):
        Role.objects.create(branch=one, name="neondb_owner", verifier="-")
        Database.objects.create(branch=one, name="neondb", owner_name="neondb_owner")
    Masking.objects.create(id=branch.id, project=project)
    # What the example of a finalized restore replaces.
    replaced = Branch.objects.create(project=project, name="replaced", current_state="ready")
    Branch.objects.filter(id=branch.id).update(restores_over=replaced.id)
    now = clock.now()
    # Where the example of a move leads to.
    make_host(
        "h2",
        host.region_id,
        pooling_available=True,
        peer_certificate="a certificate",
        proxy_seen_at=now,
    )
    HistoryChain.objects.create(
        branch=branch,
        number=1,
        first_at=now,
        first_lsn=0,
        last_at=now,
        last_lsn=1 << 40,
        updated_at=now,
    )
    return {
        "project_id": project.id,
        "branch_id": branch.id,
        "bare": bare.id,
        "endpoint_id": Endpoint.objects.filter(branch=branch)[0].id,
        "role_name": "neondb_owner",
        "database_name": "neondb",
        "webhook_id": make_webhook(account).id,
        "snapshot_id": make_snapshot(project).id,
        "org_id": account.organization_id,
        "member_id": members_of(account)[0]["member"]["id"],
        "region_id": host.region_id,
        "account_id": str(Account.objects.create(name="another").id),
        "host_id": host.id,
    }


@pytest.mark.slow
def test_every_request_example_is_accepted(
    api: DjangoClient, account: Account, document: Any, ids: dict[str, str], settings: Any
) -> None:
    settings.OPERATORS = {account.name}
    sent = 0
    for path, methods in document["paths"].items():
        for method in methods.keys() & METHODS:
            content = methods[method].get("requestBody", {}).get("content", {}).get(JSON)
            if content is None:
                continue
            Operation.objects.filter(status__in=["scheduling", "running"]).update(status="finished")
            text = json.dumps(content["example"])
            for example, real in (
                (PROJECT_ID, ids["project_id"]),
                (BRANCH_ID, ids["bare"]),
                (PARENT_ID, ids["bare"]),
                (ENDPOINT_ID, ids["endpoint_id"]),
            ):
                text = text.replace(example, real)
            answer = api.generic(method, f"/api/v2{path.format(**ids)}", text, content_type=JSON)
            assert answer.status_code in (200, 201), (method, path, answer.content)
            check(document, methods[method], answer, (method, path))
            sent += 1
    assert sent >= 13


def check(document: Any, operation: Any, answer: Any, where: Any) -> None:
    """Check that the document describes this response of the operation, and that it matches."""
    described = operation["responses"].get(str(answer.status_code))
    assert described is not None, (where, answer.status_code, answer.content)
    schema = validator(document, described["content"][JSON]["schema"])
    complaints = [str(one) for one in schema.iter_errors(answer.json())]
    assert not complaints, (where, complaints[0])
    for name in described.get("headers", {}):
        assert name in answer.headers or name == "Idempotent-Replayed", (where, name)


# What can be wrong with any call, given its method, address and body. Returns None if that does not
# apply.
Wrong = Callable[[DjangoClient, str, str, str, bool], Any]


def nul(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return api.generic(method, f"{url}?x=%00", body, content_type=JSON)


def no_json(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return api.generic(method, url, "{", content_type=JSON) if takes_body else None


def no_object(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return api.generic(method, url, "[1]", content_type=JSON) if takes_body else None


def wrong_key(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return DjangoClient().generic(
        method, url, body, content_type=JSON, headers={"Authorization": "Bearer no"}
    )


def in_chunks(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return api.generic(
        method, url, body, content_type=JSON, headers={"Transfer-Encoding": "chunked"}
    )


def too_long(api: DjangoClient, method: str, url: str, body: str, takes_body: bool) -> Any:
    return api.generic(method, url, " " * 1_100_000, content_type=JSON) if takes_body else None


def bad_idempotency_key(api: DjangoClient, method: str, url: str, body: str, takes: bool) -> Any:
    if method == "get":
        return None
    return api.generic(method, url, body, content_type=JSON, headers={"Idempotency-Key": "é"})


ANYWHERE: dict[Wrong, int] = {
    nul: 400,
    no_json: 400,
    no_object: 400,
    bad_idempotency_key: 400,
    wrong_key: 401,
    in_chunks: 411,
    too_long: 413,
}


def body_of(operation: Any) -> tuple[str, bool]:
    content = operation.get("requestBody", {}).get("content", {}).get(JSON)
    return (json.dumps(content["example"]), True) if content else ("", False)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ANYWHERE, ids=lambda wrong: wrong.__name__)
def test_an_error_of_any_call_is_as_described(
    api: DjangoClient, document: Any, wrong: Wrong
) -> None:
    for path, methods in document["paths"].items():
        for method in methods.keys() & METHODS:
            url = f"/api/v2{path}".replace("{key_id}", "1").replace("{", "").replace("}", "")
            body, takes_body = body_of(methods[method])
            answer = wrong(api, method, url, body, takes_body)
            if answer is not None:
                assert answer.status_code == ANYWHERE[wrong], (method, path, answer.content)
                check(document, methods[method], answer, (method, path))


# What has numbers as ids.
NUMBERED = {"key_id": "1", "account_id": "1"}


@pytest.mark.thorough
@pytest.mark.slow
def test_an_unknown_id_is_404_as_described(
    api: DjangoClient, account: Account, document: Any, ids: dict[str, str], settings: Any
) -> None:
    settings.OPERATORS = {account.name}
    missing = dict.fromkeys(("operation_id", "chain_id"), "00000000-0000-4000-8000-000000000000")
    for path, methods in document["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        for name in names:
            real = {**missing, "delivery_id": "1-1", **NUMBERED, **ids}
            gone = "999999999" if name in NUMBERED else missing.get(name, "gone-away-00000000")
            url = f"/api/v2{path.format(**{**real, name: gone})}"
            if "connection_uri" in path:
                url += "?database_name=neondb&role_name=neondb_owner"
            elif path.endswith("schema"):
                url += "?db_name=neondb"
            for method in methods.keys() & METHODS:
                is_named = (method, path) == ("delete", "/accounts/{account_id}")
                full = f"{url}?name=repeated" if is_named else url
                answer = api.generic(method, full, body_of(methods[method])[0], content_type=JSON)
                assert answer.status_code == 404, (method, path, name, answer.content)
                check(document, methods[method], answer, (method, path))


@pytest.mark.thorough
def test_a_limited_key_is_refused_as_described(
    api: DjangoClient,
    document: Any,
    ids: dict[str, str],
    account: Account,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No worker reads the logs.
    monkeypatch.setattr("controlplane.api.schemas.once_read", lambda *_, **__: ["[]"])
    elsewhere = make_project(account, host)
    refused = 0
    for limits in ({"read_only": True}, {"project_id": elsewhere.id}):
        _, key = ApiKey.issue(account, "limited", **limits)
        for path, methods in document["paths"].items():
            filled = {
                "operation_id": "x",
                "chain_id": "x",
                "delivery_id": "1-1",
                "key_id": "1",
                **ids,
            }
            for method in methods.keys() & METHODS:
                answer = DjangoClient().generic(
                    method,
                    f"/api/v2{path.format(**filled)}",
                    body_of(methods[method])[0],
                    content_type=JSON,
                    headers={"Authorization": f"Bearer {key}"},
                )
                check(document, methods[method], answer, (method, path))
                refused += answer.status_code == 403
    assert refused > 50


def test_a_refusal_by_state_is_as_described(
    api: DjangoClient, document: Any, ids: dict[str, str], account: Account
) -> None:
    project, endpoint = f"/projects/{ids['project_id']}", f"/endpoints/{ids['endpoint_id']}"
    one = "/projects/{project_id}"

    def refused(method: str, template: str, path: str, body: Any, status: int) -> None:
        answer = api.generic(
            method, f"/api/v2{path}", json.dumps(body) if body else "", content_type=JSON
        )
        assert answer.status_code == status, answer.content
        check(document, document["paths"][template][method], answer, (method, path))

    Endpoint.objects.filter(id=ids["endpoint_id"]).update(disabled=True)
    refused("post", one + "/endpoints/{endpoint_id}/start", f"{project}{endpoint}/start", None, 406)
    roles = f"{project}/branches/{ids['branch_id']}/roles"
    refused(
        "get",
        one + "/branches/{branch_id}/roles/{role_name}/reveal_password",
        f"{roles}/neondb_owner/reveal_password",
        None,
        412,
    )
    refused("post", one + "/branches", f"{project}/branches", {"branch": {"name": "bare"}}, 409)
    taken = {"endpoint": {"branch_id": ids["branch_id"], "type": "read_write"}}
    refused("post", one + "/endpoints", f"{project}/endpoints", taken, 409)
    nobodys = {"database": {"name": "x", "owner_name": "nobody"}}
    databases = f"{project}/branches/{ids['branch_id']}/databases"
    refused("post", one + "/branches/{branch_id}/databases", databases, nobodys, 422)
    Account.objects.filter(id=account.id).update(plan=Plan.FREE)
    for _ in range(2):
        api.post("/api/v2/projects", {"project": {}}, content_type=JSON)
    refused("post", "/projects", "/projects", {"project": {}}, 422)


def test_a_busy_project_is_refused_as_described(
    api: DjangoClient, document: Any, ids: dict[str, str]
) -> None:
    project = Project.objects.get(id=ids["project_id"])
    path = f"/api/v2/projects/{project.id}/endpoints/{ids['endpoint_id']}"
    settings = {"endpoint": {"settings": {"pg_settings": {"work_mem": "9MB"}}}}
    assert api.patch(path, settings, content_type=JSON).status_code == 200
    settings["endpoint"]["settings"]["pg_settings"]["work_mem"] = "10MB"
    answer = api.patch(path, settings, content_type=JSON)
    assert answer.status_code == 423, answer.content
    operation = document["paths"]["/projects/{project_id}/endpoints/{endpoint_id}"]["patch"]
    check(document, operation, answer, path)
