"""The `errors` of a refused request, which name the fields at fault for programs."""

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client as DjangoClient

from controlplane.api.router import api as described
from controlplane.models import Account, Branch, Endpoint, Host, Project
from tests.controlplane.api.test_every_field import put
from tests.controlplane.request_fields import request_fields
from tests.controlplane.rows import make_project, send


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    """A project with an endpoint on its default branch; its branch `bare` has no endpoint."""
    made = make_project(account, host)
    Branch.objects.create(project=made, name="bare", current_state="ready")
    return made


def errors(response: Any) -> list[tuple[str, str, str]]:
    assert response.status_code >= 400, response.content
    return [(one["field"], one["code"], one["message"]) for one in response.json()["errors"]]


def test_every_field_that_the_schema_refuses_is_named(api: DjangoClient, project: Project) -> None:
    body = {
        "project": {
            "name": 7,
            "history_retention_seconds": -1,
            "default_endpoint_settings": {"autoscaling_limit_max_cu": 1000},
        }
    }
    answer = send(api, "POST", "/projects", body)
    assert answer.status_code == 400
    assert set(errors(answer)) == {
        ("project.name", "INVALID", "must be text"),
        ("project.history_retention_seconds", "OUT_OF_RANGE", "must be greater than or equal to 0"),
        (
            "project.default_endpoint_settings.autoscaling_limit_max_cu",
            "OUT_OF_RANGE",
            "must be less than or equal to 56",
        ),
    }


def test_a_missing_field_is_required(api: DjangoClient, project: Project) -> None:
    answer = send(api, "POST", f"/projects/{project.id}/endpoints", {"endpoint": {}})
    assert ("endpoint.branch_id", "REQUIRED", "field required") in errors(answer)


# Values of every kind, of which each field refuses some.
STRANGE: tuple[Any, ...] = (7, 1.5, 10**30, True, "", "x" * 9000, "\ud800", [], [None], {"a": 7})
ALIEN = re.compile(
    r"Value error|Input should|should (have|be|match)|valid (string|integer)|\bList\b"
)


def test_refusals_have_words_of_the_api_and_not_of_its_framework(
    api: DjangoClient, project: Project
) -> None:
    document, found = json.loads(json.dumps(described.get_openapi_schema())), []
    paths = {"project_id": project.id, "branch_id": "br-a-1", "endpoint_id": "ep-a-1"}
    for route, field in (one.rsplit(" ", 1) for one in request_fields(document)):
        method, template = route.split(" ")
        path = re.sub(r"\{(\w+)\}", lambda name: paths.get(name[1], "1"), template)
        for value in STRANGE:
            if field.startswith("?"):
                answer = send(
                    api, method, f"{path}?{urlencode({field[1:]: value}, errors='replace')}"
                )
            else:
                body: Any = {}
                put(body, field, value)
                answer = send(api, method, path, body)
            if answer.status_code == 400:
                said = [answer.json()["message"], *(words for _, _, words in errors(answer))]
                found += [f"{route} {field}: {words}" for words in said if ALIEN.search(words)]
    assert not found, "\n".join(sorted(set(found))[:40])


def test_a_parameter_is_named_as_in_the_address(api: DjangoClient, project: Project) -> None:
    answer = send(api, "GET", f"/projects/{project.id}/operations?limit=x&action=fly")
    assert [field for field, _, _ in errors(answer)] == ["limit"]
    answer = send(api, "GET", f"/projects/{project.id}/operations?action=fly")
    ((field, code, words),) = errors(answer)
    assert (field, code) == ("action", "INVALID")
    assert words.startswith('action: unknown value "fly"; use one of: ')
    answer = send(api, "GET", "/projects/quiet-cell-12345678")
    assert errors(answer) == [("project_id", "NOT_FOUND", "project not found")]


@pytest.mark.parametrize(
    ("way", "prefix"),
    [
        ("POST project", "project.default_endpoint_settings.pg_settings"),
        ("POST branch", "endpoints.0.settings.pg_settings"),
        ("PATCH endpoint", "endpoint.settings.pg_settings"),
    ],
)
def test_every_setting_that_is_refused_has_its_path_in_the_body(
    api: DjangoClient, project: Project, way: str, prefix: str
) -> None:
    pg_settings = {"fsync": "off", "auto_explain.log_min_duration": "soon", "work_mem": "4MB"}
    attributes = {"settings": {"pg_settings": pg_settings}}
    path = f"/projects/{project.id}"
    if way == "POST project":
        body: Any = {"project": {"default_endpoint_settings": {"pg_settings": pg_settings}}}
        answer = send(api, "POST", "/projects", body)
    elif way == "POST branch":
        body = {"endpoints": [{"type": "read_write", **attributes}]}
        answer = send(api, "POST", f"{path}/branches", body)
    else:
        endpoint = Endpoint.objects.get(project=project)
        body = {"endpoint": attributes}
        answer = send(api, "PATCH", f"{path}/endpoints/{endpoint.id}", body)
    found = errors(answer)
    assert {field for field, _, _ in found} >= {f"{prefix}.fsync"}
    assert "work_mem" not in str(found)
    # The message is still about the first one.
    assert answer.json()["message"] == f"settings.pg_settings.fsync: {found[0][2]}"


def test_a_size_that_does_not_fit_the_stored_settings_is_named(
    api: DjangoClient, project: Project
) -> None:
    endpoint = Endpoint.objects.get(project=project)
    path = f"/projects/{project.id}/endpoints/{endpoint.id}"
    endpoint.settings = {"pgbouncer_settings": {"default_pool_size": "3000"}}
    endpoint.autoscaling_limit_max_cu = 8
    endpoint.save()
    body = {"endpoint": {"autoscaling_limit_min_cu": 0.25, "autoscaling_limit_max_cu": 0.25}}
    ((field, code, words),) = errors(send(api, "PATCH", path, body))
    assert (field, code) == ("endpoint.autoscaling_limit_max_cu", "NOT_ALLOWED")
    assert words.startswith("settings.pgbouncer_settings.default_pool_size: ")


def test_a_taken_name(api: DjangoClient, project: Project) -> None:
    path = f"/projects/{project.id}/branches"
    answer = send(api, "POST", path, {"branch": {"name": "bare"}, "endpoints": []})
    words = 'there is a branch called "bare" already'
    assert errors(answer) == [("branch.name", "TAKEN", words)]
    assert answer.json()["message"] == 'branch already exists; branch_name:"bare"'


def test_another_resource_that_does_not_exist(api: DjangoClient, project: Project) -> None:
    body = {"branch": {"parent_id": "br-none-at-12345678"}}
    answer = send(api, "POST", f"/projects/{project.id}/branches", body)
    assert errors(answer) == [("branch.parent_id", "NOT_FOUND", "branch not found")]


def test_of_two_fields_only_the_one_that_was_sent_is_named(
    api: DjangoClient, project: Project
) -> None:
    default = Branch.objects.get(project=project, default=True)
    body = {"branch": {"ttl_interval_seconds": 60}}
    answer = send(api, "PATCH", f"/projects/{project.id}/branches/{default.id}", body)
    words = "the default branch cannot expire; set another one first"
    assert errors(answer) == [("branch.ttl_interval_seconds", "NOT_ALLOWED", words)]


def test_a_refusal_without_a_field_has_no_errors(api: DjangoClient, project: Project) -> None:
    assert errors(send(api, "GET", "/nowhere")) == []
    answer = api.generic("POST", "/api/v2/projects", "{", content_type="application/json")
    assert errors(answer) == []


def test_the_number_of_reported_errors_is_limited(api: DjangoClient, project: Project) -> None:
    ips = [f"nowhere {number}" for number in range(150)]
    body = {"project": {"settings": {"allowed_ips": {"ips": ips}}}}
    found = errors(send(api, "PATCH", f"/projects/{project.id}", body))
    assert len(found) == 100
    assert found[7][0] == "project.settings.allowed_ips.ips.7"
