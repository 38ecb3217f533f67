"""A button of each form shows the request that the form would send, as a command for curl."""

import html
import re
import subprocess
from typing import Any
from urllib.parse import quote

import pytest
from django import forms

from console.account.api_keys import ApiKeyForm
from console.account.webhooks import WebhookForm
from console.endpoints.forms import EndpointForm, EndpointSettingsForm
from console.forms.api_requests import body_of
from tests.console.branches.test_roles_and_databases import roles
from tests.console.conftest import Person, Shop
from tests.console.pages import Page

BUTTON = 'name="as_curl"'


def curl_of(answer: Any) -> str:
    """Return the command that a page shows; "" if it shows none."""
    found = re.search(
        r'<div class="curl">.*?<code>(.*?)</code>', answer.content.decode(), re.DOTALL
    )
    return html.unescape(found[1]) if found else ""


def ask(person: Person, path: str, **data: Any) -> str:
    answer = person.post(path, {**data, "as_curl": "1"})
    assert answer.status_code == 200, answer.content.decode()
    return curl_of(answer)


def run(person: Person, curl: str) -> str:
    assert person.api.key not in curl
    done = subprocess.run(
        ["bash", "-c", f"{curl} -s --fail-with-body"],
        env={"NEON_API_KEY": person.api.key, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (curl, done.stdout)
    return done.stdout


def test_the_command_does_what_the_form_does(alice: Person) -> None:
    name = 'it\'s a "bird" shop'
    curl = ask(alice, "/new-project", name=name, region_id="local")
    assert name not in Page(alice.get("/")).text
    assert '"project"' in run(alice, curl)
    assert name in Page(alice.get("/")).text


def test_the_form_keeps_what_was_typed(alice: Person) -> None:
    answer = alice.post("/new-project", {"name": "birds", "as_curl": "1"})
    assert Page(answer).fields["name"] == "birds"


def test_an_invalid_form_shows_its_errors_and_no_command(carol: Person, still_shop: Shop) -> None:
    answer = carol.post(f"{still_shop.url}/rename", {"name": "", "as_curl": "1"})
    assert answer.status_code == 422
    assert curl_of(answer) == ""


@pytest.mark.parametrize(
    ("path", "data", "method", "end"),
    [
        ("/rename", {"name": "birds"}, "PATCH", ' -d \'{"project": {"name": "birds"}}\''),
        # What has to be typed to confirm a deletion is not part of the request.
        ("/delete", {}, "DELETE", '$NEON_API_KEY"'),
        ("/new-branch", {"name": "b"}, "POST", ' -d \'{"branch": {"name": "b"}}\''),
        ("/branches/{dev}/set-default", {}, "POST", '$NEON_API_KEY"'),
        ("/new-endpoint", {"branch_id": "{dev}"}, "POST", '"branch_id": "{dev}"}}\''),
        ("/endpoints/{endpoint}/suspend", {}, "POST", '$NEON_API_KEY"'),
        ("/endpoints/{endpoint}/delete", {}, "DELETE", '$NEON_API_KEY"'),
    ],
)
def test_every_form_shows_its_request(
    carol: Person, still_shop: Shop, path: str, data: dict[str, str], method: str, end: str
) -> None:
    def filled(text: str) -> str:
        text = text.replace("{dev}", still_shop.dev_id)
        return text.replace("{endpoint}", still_shop.endpoint_id)

    url = still_shop.url + filled(path)
    assert BUTTON in carol.get(url).content.decode()
    curl = ask(carol, url, **{name: filled(value) for name, value in data.items()})
    assert curl.startswith(f"curl -X {method} {carol.api.api_url}/projects/{still_shop.id}")
    assert curl.endswith(filled(end))


def test_a_change_has_only_what_was_changed(carol: Person, still_shop: Shop) -> None:
    path = f"{still_shop.endpoint_url}/settings"
    fields = Page(carol.get(path)).fields
    curl = ask(carol, path, **{**fields, "min_cu": "1"})
    assert curl.endswith('-d \'{"endpoint": {"autoscaling_limit_min_cu": 1}}\'')


def test_a_form_with_nothing_to_send_stays_open(carol: Person, still_shop: Shop) -> None:
    path = f"{still_shop.endpoint_url}/settings"
    data = {**Page(carol.get(path)).fields, "as_curl": "1"}
    answer = carol.htmx_post(path, data, at=still_shop.endpoint_url)
    assert "Nothing was changed." in answer.content.decode()
    assert answer["HX-Reswap"] == "none"
    assert "HX-Trigger" not in answer


def test_a_form_without_a_request_has_no_button(carol: Person) -> None:
    for path in ("/preferences", "/sign-out-everywhere"):
        assert BUTTON not in carol.get(path).content.decode()


def test_roles_with_special_characters_of_shells_and_addresses(alice: Person, shop: Shop) -> None:
    url, name = f"{shop.url}/branches/{shop.dev_id}", "ann's [name] {x} & 100%"
    run(alice, ask(alice, f"{url}/new-role", name=name))
    assert name in roles(alice, shop)
    quoted = quote(name, safe="")
    assert '"password"' in run(alice, ask(alice, f"{url}/role/password?name={quoted}"))
    run(alice, ask(alice, f"{url}/role/delete?name={quoted}"))
    assert name not in roles(alice, shop)


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_name_that_would_change_the_path_has_no_command(
    carol: Person, still_shop: Shop, name: str
) -> None:
    """curl would delete the branch."""
    path = f"{still_shop.url}/branches/{still_shop.dev_id}/role/delete?name={name}"
    answer = carol.post(path, {"as_curl": "1"})
    assert curl_of(answer) == ""
    assert answer.status_code == 422


def test_a_button_outside_of_forms_sends_nothing(carol: Person, still_shop: Shop) -> None:
    before = carol.api.get(still_shop.path + "/operations")["operations"]
    carol.post(f"{still_shop.endpoint_url}/start", {"as_curl": "1"})
    assert carol.api.get(still_shop.path + "/operations")["operations"] == before


@pytest.mark.parametrize(
    ("form", "url_name", "body"),
    [
        (
            ApiKeyForm({"name": "tests", "expires_at": "2100-01-31"}),
            "api_key_create",
            {"key_name": "tests", "expires_at": "2100-02-01T00:00:00Z"},
        ),
        (
            WebhookForm({"url": "https://w.example", "event_types": ["branch.created"]}),
            "webhook_create",
            {"webhook": {"url": "https://w.example", "event_types": ["branch.created"]}},
        ),
        (
            WebhookForm({"url": "https://w.example", "project_id": "p"}),
            "webhook_create",
            {"webhook": {"url": "https://w.example", "project_id": "p", "event_types": ["*"]}},
        ),
        (
            EndpointForm({"branch_id": "br-a", "min_cu": "0.25", "max_cu": "2"}),
            "endpoint_create",
            {
                "endpoint": {
                    "type": "read_write",
                    "branch_id": "br-a",
                    "autoscaling_limit_min_cu": 0.25,
                    "autoscaling_limit_max_cu": 2,
                }
            },
        ),
        (
            EndpointSettingsForm({"pg_settings": "", "initial-pg_settings": "work_mem = 4MB"}),
            "endpoint_settings",
            {"endpoint": {"settings": {"pg_settings": {}}}},
        ),
        (EndpointSettingsForm({"min_cu": "1", "initial-min_cu": "1"}), "endpoint_settings", {}),
    ],
)
def test_a_form_sends_what_is_filled_in(
    form: forms.Form, url_name: str, body: dict[str, Any]
) -> None:
    assert form.is_valid()
    assert body_of(form, url_name) == body
