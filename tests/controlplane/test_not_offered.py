"""Paths that clients know and this server lacks are refused with the reason; unknown ones are
named."""

import re
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane.api.not_offered import BRANCH, KNOWN, known_route
from controlplane.api.router import api as described

KNOWN_ROUTES = [
    (method, template.replace("BRANCH/", f"{BRANCH}/"))
    for methods, template in (line.split() for line in KNOWN.strip().splitlines())
    for method in methods.split(",")
]


@pytest.fixture(scope="module")
def built() -> set[tuple[str, str]]:
    paths = described.get_openapi_schema(path_prefix="/api/v2/")["paths"]
    return {
        (method.upper(), path.removeprefix("/api/v2"))
        for path, methods in paths.items()
        for method in methods
    }


def plain(template: str) -> str:
    """Replace the names of parameters: one document says project_id where another says id."""
    return re.sub(r"\{\w+\}", "{}", template)


def test_every_known_path_exists_or_says_that_it_does_not(
    api: DjangoClient, built: set[tuple[str, str]]
) -> None:
    ours = {(method, plain(template)) for method, template in built}
    paths = {path for _, path in ours}
    unbuilt = [one for one in KNOWN_ROUTES if (one[0], plain(one[1])) not in ours]
    assert len(unbuilt) > 50
    for method, template in unbuilt:
        path = re.sub(r"\{(\w+)\}", "some-thing-12345678", template)
        response = api.generic(method, f"/api/v2{path}")
        said = response.json()
        # Another method of an existing path is answered by 405.
        assert response.status_code == (405 if plain(template) in paths else 404)
        assert (said["code"], said["message"]) == (
            "NOT_OFFERED",
            f"not offered by this server: {method} {template} is not available here",
        )


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/nothing", "not found: there is no GET /nothing in this API"),
        ("POST", "/projects/a/b/c/d", "not found: there is no POST /projects/a/b/c/d in this API"),
        ("GET", "", "not found: there is no GET / in this API"),
        ("GET", "/vpc_endpoints", "not found: there is no GET /vpc_endpoints in this API"),
    ],
)
def test_an_unknown_path_is_named(api: DjangoClient, method: str, path: str, message: str) -> None:
    response = api.generic(method, f"/api/v2{path}")
    said = response.json()
    assert (response.status_code, said["code"], said["message"]) == (404, "", message)


def test_a_long_path_is_shortened(api: DjangoClient) -> None:
    message = api.get("/api/v2/" + "x" * 3000).json()["message"]
    assert len(message) < 300


def test_paths_outside_the_api(api: DjangoClient) -> None:
    assert api.get("/nothing").json()["message"] == "not found: /nothing"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/projects"), ("DELETE", "/regions"), ("PATCH", "/projects/a/operations/b")],
)
def test_a_wrong_method_is_405(api: DjangoClient, method: str, path: str) -> None:
    response = api.generic(method, f"/api/v2{path}")
    assert (response.status_code, response.json()["message"]) == (405, "method not allowed")
    assert response.headers["Allow"]


def test_a_method_that_other_servers_have_on_an_existing_path(api: DjangoClient) -> None:
    response: Any = api.post("/api/v2/projects/some-thing-12345678/permissions")
    assert response.status_code == 405
    message = "not offered by this server: POST /projects/{project_id}/permissions is not"
    assert response.json()["message"].startswith(message)


def test_the_exact_path_takes_precedence_over_the_general_one() -> None:
    assert known_route("GET", "/projects/shared") == "GET /projects/shared"
    assert known_route("GET", "/projects/a") == "GET /projects/{project_id}"
    assert known_route("GET", "/projects/a/b%2fc/d") is None
