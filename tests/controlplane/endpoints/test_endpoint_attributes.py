"""Each attribute of endpoints is declared once, in `models.ATTRIBUTES`. All other code derives from
it."""

import functools
import json
from typing import Any

import pytest
from django.db import models
from django.test import Client as DjangoClient

from controlplane.api.router import api as described
from controlplane.models import (
    APPLIED,
    ATTRIBUTES,
    Account,
    Action,
    Attribute,
    Branch,
    Endpoint,
    Event,
    Host,
    Operation,
    Project,
)
from controlplane.operations.engine.effects import go_back
from tests.controlplane.field_declarations import another_value, default_of
from tests.controlplane.rows import make_project
from tests.support.stack import ROOT

DECLARED = pytest.mark.parametrize("one", ATTRIBUTES.values(), ids=list(ATTRIBUTES))
COLUMNS: dict[Any, Any] = {
    bool: models.BooleanField,
    int: models.IntegerField,
    float: models.FloatField,
    str: models.CharField,
    dict: models.JSONField,
}
REQUESTS = ("NewEndpoint", "NewBranchEndpoint", "EndpointChanges")
OF_DEFAULTS = ("DefaultEndpointSettings", "DefaultEndpointSettingsOut")


@functools.cache
def schemas() -> Any:
    return json.loads(json.dumps(described.get_openapi_schema()))["components"]["schemas"]


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    host.pooling_available, host.pooler_version = True, "1.25"
    host.save()
    return make_project(account, host)


@DECLARED
def test_it_is_stored(one: Attribute) -> None:
    column: Any = Endpoint._meta.get_field(one.name)
    default = default_of(one)
    assert isinstance(column, COLUMNS[one.kind])
    assert column.null == one.is_optional
    assert not one.values or default in one.values
    assert one.least is None or default >= one.least
    assert one.most is None or one.kind is str or default <= one.most
    if one.kind is str:
        longest = max(map(len, one.values), default=one.most)
        assert longest is not None
        assert longest <= column.max_length


@DECLARED
@pytest.mark.parametrize("name", REQUESTS)
def test_requests_accept_it_within_its_bounds(one: Attribute, name: str) -> None:
    assert name in schemas()
    assert one.name not in schemas()[name].get("required", ())
    _assert_bounds(schemas()[name]["properties"][one.name], one)


@DECLARED
def test_responses_have_it(one: Attribute) -> None:
    known = schemas()["EndpointOut"]
    assert known["properties"][one.name]["description"] == one.description
    assert (one.name in known["required"]) == (not one.is_optional)


@DECLARED
@pytest.mark.parametrize("name", OF_DEFAULTS)
def test_defaults_of_projects_have_it_if_declared(one: Attribute, name: str) -> None:
    assert (one.name in schemas()[name]["properties"]) == one.in_defaults


def _assert_bounds(schema: Any, one: Attribute) -> None:
    taken = next(shape for shape in schema["anyOf"] if shape.get("type") != "null")
    if one.kind is str:
        values = taken.get("enum") or [taken["const"]] if one.values else []
        assert tuple(values) == one.values
        assert taken.get("maxLength") == one.most
    else:
        assert (taken.get("minimum"), taken.get("maximum")) == (one.least, one.most)


@pytest.mark.parametrize(
    "one",
    [one for one in ATTRIBUTES.values() if another_value(one) != default_of(one)],
    ids=lambda one: one.name,
)
def test_a_change_is_returned_recorded_and_applied(
    api: DjangoClient, project: Project, one: Attribute
) -> None:
    endpoint = Endpoint.objects.get(project=project)
    value = another_value(one)
    path = f"/api/v2/projects/{project.id}/endpoints/{endpoint.id}"
    response = api.patch(path, {"endpoint": {one.name: value}}, content_type="application/json")
    assert response.status_code == 200, response.content
    assert response.json()["endpoint"][one.name] == value
    event = Event.objects.get(type="endpoint.updated")
    assert [name.partition(".")[0] for name in event.changes] == [one.name]
    made = Operation.objects.filter(endpoint=endpoint, action=Action.APPLY_CONFIG)
    assert made.exists() == one.is_applied


@pytest.mark.parametrize(
    "one", [one for one in ATTRIBUTES.values() if one.in_defaults], ids=lambda one: one.name
)
def test_a_new_endpoint_has_its_projects_default(
    api: DjangoClient, project: Project, one: Attribute
) -> None:
    value = another_value(one)
    path = f"/api/v2/projects/{project.id}"
    body = {"project": {"default_endpoint_settings": {one.name: value}}}
    response = api.patch(path, body, content_type="application/json")
    assert response.json()["project"]["default_endpoint_settings"] == {one.name: value}
    branch = Branch.objects.create(project=project, name="bare", current_state="ready")
    asked = {"endpoint": {"branch_id": branch.id}}
    response = api.post(f"{path}/endpoints", asked, content_type="application/json")
    assert response.json()["endpoint"][one.name] == value


@DECLARED
def test_the_event_of_a_creation_has_it_if_declared(
    api: DjangoClient, project: Project, one: Attribute
) -> None:
    branch = Branch.objects.create(project=project, name="bare", current_state="ready")
    asked = {"endpoint": {"branch_id": branch.id, one.name: another_value(one)}}
    path = f"/api/v2/projects/{project.id}/endpoints"
    response = api.post(path, asked, content_type="application/json")
    assert response.status_code == 201, response.content
    event = Event.objects.get(type="endpoint.created")
    assert (one.name in event.changes) == one.in_creation_event


@DECLARED
def test_the_specification_names_it(one: Attribute) -> None:
    text = (ROOT / "docs" / "reference" / "specification.md").read_text()
    endpoint = text.partition("### 2.1 Endpoint")[2].partition("### 2.2")[0]
    assert f"`{one.name}`" in endpoint


def test_a_configuration_stored_by_an_earlier_release_leaves_other_attributes_alone(
    project: Project,
) -> None:
    """The earlier release did not know all attributes of this one."""
    endpoint = Endpoint.objects.get(project=project)
    endpoint.autoscaling_limit_max_cu = 2
    endpoint.save()
    operation = Operation.objects.get(endpoint=endpoint)
    operation.action = Action.APPLY_CONFIG
    operation.details = {"before": {"pooler_enabled": True}}
    go_back(operation, endpoint)
    endpoint.refresh_from_db()
    assert (endpoint.pooler_enabled, endpoint.autoscaling_limit_max_cu) == (True, 2)
    event = Event.objects.get(type="endpoint.updated")
    assert event.changes == {"pooler_enabled": {"from": False, "to": True}}
    assert operation.details["wanted"] == {
        name: Endpoint(autoscaling_limit_max_cu=2).configuration[name] for name in APPLIED
    }
