"""The document that the API publishes: complete for every call, and true."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openapi_spec_validator
import pytest
from django.test import Client as DjangoClient

from tests.controlplane.operation_ids import OPERATION_IDS, OWN
from tests.support.neon_document import CALLS

METHODS = ("get", "post", "patch", "delete")


@pytest.fixture(scope="module")
def document() -> Any:
    return DjangoClient().get("/api/v2/openapi.json").json()


@pytest.fixture(scope="module")
def calls(document: Any) -> dict[str, Any]:
    """The document's operations, by keys such as "GET /projects"."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def test_the_document_is_openapi_for_this_address(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    assert [one["url"] for one in document["servers"]] == ["http://testserver/api/v2", "/api/v2"]
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert all(tag["description"] for tag in document["tags"]), document["tags"]


@pytest.mark.slow
def test_it_is_valid(document: Any) -> None:
    openapi_spec_validator.validate(document)


def test_it_is_json_whatever_the_host_header_is(client: DjangoClient) -> None:
    for host in ('a"b', "x y", "[::1", "example.com:99999999"):
        answer = client.get("/api/v2/openapi.json", headers={"Host": host})
        assert answer.status_code == 200
        assert answer.json()["servers"][-1]["url"] == "/api/v2"


def test_every_text_in_a_body_says_what_it_may_contain(document: Any) -> None:
    """Otherwise it may contain what the database cannot store: surrogates and null characters."""
    schemas, met = document["components"]["schemas"], list[str]()

    def texts(part: Any, place: str) -> Iterator[str]:
        if isinstance(part, list):
            for one in part:
                yield from texts(one, place)
        if not isinstance(part, dict):
            return
        if "$ref" in part and (name := part["$ref"].rpartition("/")[2]) not in met:
            met.append(name)
            yield from texts(schemas[name], name)
        if part.get("type") == "string" and not {"pattern", "enum", "const", "format"} & set(part):
            yield place
        for name, one in part.items():
            yield from texts(one, f"{place}.{name}")

    bodies = [
        operation["requestBody"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if isinstance(operation, dict) and "requestBody" in operation
    ]
    assert len(bodies) > 20
    assert list(texts(bodies, "body")) == []


def test_every_call_has_an_id_and_a_description(calls: dict[str, Any]) -> None:
    ids = [operation["operationId"] for operation in calls.values()]
    assert len(ids) == len(set(ids))
    for call, operation in calls.items():
        assert re.fullmatch(r"[a-z]+([A-Z][A-Za-z0-9]*)*", operation["operationId"]), call
        assert operation["summary"], f"{call}: no summary"
        assert operation.get("description"), f"{call}: the function needs a docstring"
        assert operation["tags"], call


def test_the_ids_are_those_of_the_sdks(calls: dict[str, Any]) -> None:
    named = {call: operation["operationId"] for call, operation in calls.items()}
    shared = named.keys() - OWN
    assert {call: named[call] for call in shared} == {
        call: OPERATION_IDS.get(call) for call in shared
    }
    assert OPERATION_IDS.keys().isdisjoint(OWN)


def test_the_expected_ids_include_those_of_the_oldest_document() -> None:
    for line in CALLS.read_text().splitlines():
        if found := re.match(r"(GET|POST|PATCH|DELETE) (\S+) (\w+) ", line):
            assert OPERATION_IDS[f"{found[1]} {found[2]}"] == found[3]


def test_every_parameter_and_field_has_a_description(document: Any, calls: dict[str, Any]) -> None:
    unsaid = [
        f"{call}: parameter {one['name']}"
        for call, operation in calls.items()
        for one in operation["parameters"]
        if not one.get("description")
    ]
    unsaid += [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, part in schema.get("properties", {}).items()
        if not part.get("description")
    ]
    where = "Field(description=…), or a line in controlplane/api/document/glossary.py"
    assert not unsaid, f"{where}: {unsaid}"


def test_fields_have_the_names_of_the_responses(document: Any) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["ChangeOut"]["properties"]) == {"from", "to"}
    assert "schema" in schemas["TableOut"]["properties"]


def test_every_call_lists_its_errors(calls: dict[str, Any]) -> None:
    for call, operation in calls.items():
        method, path = call.split()
        told = set(operation["responses"])
        assert {"400", "401", "429", "500", "503"} <= told, call
        assert ("404" in told) >= ("{" in path), call
        if method != "GET":
            assert {"403", "409", "413", "422"} <= told, call
            may_be_busy = path.startswith("/projects/{project_id}") or call == "POST /projects"
            assert ("423" in told) == may_be_busy, call
        assert "default" not in told, call
        for status, answer in operation["responses"].items():
            if not status.startswith("2"):
                example = answer["content"]["application/json"]["example"]
                assert example["message"], (call, status)


def test_every_example_is_valid_for_its_schema(document: Any, calls: dict[str, Any]) -> None:
    # Most responses are errors, with one schema.
    validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
    for call, operation in calls.items():
        contents = [operation.get("requestBody", {}).get("content", {})]
        contents += [answer.get("content", {}) for answer in operation["responses"].values()]
        for content in contents:
            if "application/json" in content:
                described = content["application/json"]
                words = f"{call}: a line in REQUESTS of controlplane/api/document/glossary.py"
                assert "example" in described, words
                key = json.dumps(described["schema"])
                if key not in validators:
                    validators[key] = validator(document, described["schema"])
                complaints = [str(one) for one in validators[key].iter_errors(described["example"])]
                assert not complaints, (call, complaints[0])


def test_every_link_leads_to_a_call_with_the_parameters_it_passes(calls: dict[str, Any]) -> None:
    by_id = {operation["operationId"]: operation for operation in calls.values()}
    linked = set()
    for call, operation in calls.items():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                target = by_id[link["operationId"]]
                names = {one["name"] for one in target["parameters"] if one["in"] == "path"}
                assert names == link["parameters"].keys(), (call, link)
                linked.add(link["operationId"])
    assert {"getProjectOperation", "getProject", "getProjectBranch", "getWebhook"} <= linked


def validator(document: Any, schema: Any) -> jsonschema_rs.Draft202012Validator:
    whole = {**schema, "components": document["components"]}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def test_every_change_takes_an_idempotency_key_and_no_read_does(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names = [one["name"] for one in operation.get("parameters", ())]
            expected = method in ("post", "patch", "delete")
            assert names.count("Idempotency-Key") == expected, (method, path)
            good = {s: a for s, a in operation["responses"].items() if s.startswith("2")}
            assert good
            for answer in good.values():
                assert ("Idempotent-Replayed" in answer.get("headers", {})) == expected
