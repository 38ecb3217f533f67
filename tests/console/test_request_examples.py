"""Each form shows the equivalent request, for curl and for neonctl."""

import html
import re
import shlex
import subprocess
from typing import Any

import pytest
from django import forms

from console.account.api_keys import ApiKeyForm
from console.account.webhooks import WebhookForm
from console.endpoints.forms import EndpointForm, EndpointSettingsForm
from console.forms.api_requests import body_of
from tests.console.conftest import Person, Shop
from tests.console.pages import Page


def commands(answer: Any) -> dict[str, str]:
    found = re.findall(r'<code data-kind="(\w+)">(.*?)</code>', answer.content.decode(), re.DOTALL)
    texts = {kind: html.unescape(text) for kind, text in found}
    if "neonctl" in texts:
        # Each option is on a line of its own.
        texts["neonctl"] = texts["neonctl"].replace(" \\\n  ", " ")
    return texts


def test_the_example_does_what_the_form_does(alice: Person, stack: Any) -> None:
    """An invalid form is returned with what was typed, so its example has these values."""
    data = {"name": 'it\'s a "bird" shop', "region_id": "nowhere"}
    found = commands(alice.post("/new-project", data))
    assert f"--name {shlex.quote(data['name'])}" in found["neonctl"]
    curl = found["curl"].replace("nowhere", "local")
    assert "$NEON_API_KEY" in curl
    assert alice.api.key not in curl
    done = subprocess.run(
        ["bash", "-c", f"{curl} -sf"],
        env={"NEON_API_KEY": alice.api.key, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"project"' in done.stdout
    assert data["name"] in Page(alice.get("/")).text


def test_empty_fields_are_not_sent(alice: Person) -> None:
    assert commands(alice.get("/new-project"))["curl"].endswith(
        '-d \'{"project": {"region_id": "local"}}\''
    )


@pytest.mark.parametrize(
    ("path", "method", "neonctl"),
    [
        ("/rename", "PATCH", "neonctl projects update {id} --api-host {api} --name "),
        ("/delete", "DELETE", "neonctl projects delete {id} --api-host"),
        ("/new-branch", "POST", "neonctl branches create --project-id {id} --api-host"),
        ("/branches/{dev}/rename", "PATCH", "neonctl branches rename {dev} dev --project-id {id}"),
        ("/new-endpoint", "POST", "neonctl branches add-compute {dev} --project-id {id}"),
        ("/endpoints/{endpoint}/settings", "PATCH", None),
        ("/endpoints/{endpoint}/delete", "DELETE", None),
    ],
)
def test_every_form_has_an_example(
    carol: Person, still_shop: Shop, path: str, method: str, neonctl: str | None
) -> None:
    ids = {"id": still_shop.id, "dev": still_shop.dev_id, "endpoint": still_shop.endpoint_id}
    ids["api"] = carol.api.api_url
    answer = carol.get(f"{still_shop.url}{path.format(**ids)}?branch={still_shop.dev_id}")
    found = commands(answer)
    assert found["curl"].startswith(
        f"curl -X {method} {carol.api.api_url}/projects/{still_shop.id}"
    )
    # Nothing was changed yet, and a change sends only changed settings; but always the name.
    assert ("-d" in found["curl"].split()) == (method == "POST" or path.endswith("rename"))
    if neonctl:
        assert neonctl.format(**ids) in found["neonctl"]
    else:
        assert "neonctl" not in found


def test_the_example_of_a_change_has_only_changed_fields(alice: Person, shop: Shop) -> None:
    path = f"{shop.endpoint_url}/settings"
    fields = Page(alice.get(path)).fields
    found = commands(alice.post(path, {**fields, "min_cu": "999"}))
    assert found["curl"].endswith('-d \'{"endpoint": {"autoscaling_limit_min_cu": 999}}\'')


def test_a_form_without_an_api_request_has_no_example(alice: Person) -> None:
    assert commands(alice.get("/preferences")) == {}
    assert commands(alice.get("/sign-out-everywhere")) == {}


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
def test_a_form_sends_what_its_example_says(
    form: forms.Form, url_name: str, body: dict[str, Any]
) -> None:
    assert form.is_valid()
    assert body_of(form, url_name) == body
