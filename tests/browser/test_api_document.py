"""The page on which Swagger UI shows the API's document."""

import requests
from playwright.sync_api import Browser

from tests.support.stack import Stack
from tests.support.waiting import load

METHODS = {"get", "post", "patch", "put", "delete"}


def test_it_shows_every_call_and_loads_nothing_from_elsewhere(
    stack: Stack, browser: Browser
) -> None:
    document = requests.get(f"{stack.api_url}/openapi.json", timeout=60).json()
    calls = sum(len(METHODS & methods.keys()) for methods in document["paths"].values())
    page = browser.new_page()
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    answer = page.goto(f"{stack.api_url}/docs")
    assert answer is not None
    assert "unsafe" not in answer.headers["content-security-policy"]
    page.locator(".opblock").nth(calls - 1).wait_for(timeout=30_000 * load())
    assert page.locator(".opblock").count() == calls
    page.locator(".opblock").first.click()
    page.get_by_role("button", name="Try it out").wait_for()
    assert all(url.startswith((stack.api_url, "data:")) for url in requested), requested
    # What the policy forbids is reported there.
    assert complaints == []
    page.close()


def test_no_other_file_is_served(stack: Stack) -> None:
    for name in ("redoc.standalone.js", "swagger-ui.css.map", "..%2f..%2f__init__.py"):
        assert requests.get(f"{stack.api_url}/docs/{name}", timeout=10).status_code == 404, name
