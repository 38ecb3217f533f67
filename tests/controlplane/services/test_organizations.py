"""The one organization of an account, and other calls that clients make first."""

import re
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client as DjangoClient

from controlplane.api.responses.organizations import email_of
from controlplane.models import Account
from controlplane.services.projects import list_projects
from tests.controlplane.fields import assert_fields, like, text, timestamp
from tests.support.client import Client
from tests.support.project import refusal

ORGANIZATION = {
    "id": like(r"org-account-\d{8,}"),
    "name": text,
    "handle": like(r"[a-z0-9-]+"),
    "plan": text,
    "created_at": timestamp,
    "updated_at": timestamp,
    "managed_by": like("console"),
}
THEIRS = "org-account-00000000"


def organization(client: Client) -> Any:
    (found,) = client.get("/users/me/organizations")["organizations"]
    return found


def test_it_works(alice: Client) -> None:
    found = organization(alice)
    assert_fields(found, ORGANIZATION)
    assert alice.get(f"/organizations/{found['id']}") == found
    made = alice.new_project(org_id=found["id"], wait=False)["project"]
    assert made["org_id"] == found["id"]
    for query in ({}, {"org_id": found["id"]}):
        (listed,) = alice.get("/projects", **query)["projects"]
        assert (listed["id"], listed["org_id"]) == (made["id"], found["id"])
        assert alice.get("/regions", **query)["regions"]
    assert alice.get(f"/projects/{made['id']}")["project"]["org_id"] == found["id"]


def test_another_accounts_organization_is_not_found(alice: Client, bob: Client) -> None:
    theirs = organization(bob)["id"]
    assert theirs != organization(alice)["id"]
    for other in (theirs, THEIRS, "x"):
        for path in ("/projects?org_id=", "/regions?org_id=", "/organizations/"):
            answer = refusal(alice.call("GET", path + other))
            assert answer == (404, "organization not found"), path
        for rest in ("/members", "/api_keys"):
            assert refusal(alice.call("GET", f"/organizations/{other}{rest}"))[0] == 404
        body = {"project": {"org_id": other}}
        assert refusal(alice.call("POST", "/projects", json=body))[0] == 404
    assert alice.get("/projects")["projects"] == []


def test_the_account_is_its_only_member(alice: Client) -> None:
    me, org_id = alice.get("/users/me"), organization(alice)["id"]
    (only,) = alice.get(f"/organizations/{org_id}/members")["members"]
    assert only["user"] == {"email": me["email"]}
    assert (only["member"]["user_id"], only["member"]["role"]) == (me["id"], "admin")
    assert alice.get(f"/organizations/{org_id}/members")["members"] == [only]


def test_pages_of_members(alice: Client) -> None:
    path = f"/organizations/{organization(alice)['id']}/members"
    (only,) = alice.get(path, sort_by="email", sort_order="desc", limit=1)["members"]
    assert alice.get(path, cursor="behind the only one")["members"] == []
    for wrong in ({"sort_by": "height"}, {"sort_order": "up"}, {"limit": 0}):
        refused = alice.call("GET", path, params=wrong)
        (field,) = wrong
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, field)
    assert alice.get(f"{path}/{only['member']['id']}") == only["member"]
    refused = alice.call("GET", f"{path}/{THEIRS}")
    assert refusal(refused) == (404, "member not found")


def test_its_api_keys_are_those_of_the_account(alice: Client) -> None:
    path = f"/organizations/{organization(alice)['id']}/api_keys"
    made = alice.post(path, {"key_name": "by the organization"})
    assert Client(alice.api_url, made["key"]).get("/users/me")["id"] == alice.get("/users/me")["id"]
    assert alice.get(path) == alice.get("/api_keys")
    assert alice.delete(f"{path}/{made['id']}")["revoked"] is True
    assert made["id"] not in [key["id"] for key in alice.get(path)]


def test_what_a_plan_allows_per_project(alice: Client, free: Client) -> None:
    for client, expected in ((alice, (-1, -1)), (free, (3, 10))):
        made = client.new_project(wait=False)["project"]
        limits = client.get(f"/projects/{made['id']}/limits")["limits"]
        assert (limits["max_projects"], limits["max_branches"]) == expected
        # Of an account without a limit, what the host has.
        largest = limits["max_autoscaling_cu"]
        assert largest == 1 if client is free else 1 <= largest <= 56
        assert limits["max_allowed_ips"] == 200
    assert refusal(alice.call("GET", f"/projects/{made['id']}/limits"))[0] == 404


@pytest.mark.parametrize(
    ("name", "email"),
    [
        ("alice", "alice@localhost.localdomain"),
        ("Ann & Bob, Ltd.", "ann-bob-ltd@localhost.localdomain"),
        ("ann@example.com", "ann@example.com"),
        ("ann@here", "ann-here@localhost.localdomain"),
        ("日本", "account-7@localhost.localdomain"),
    ],
)
def test_an_email_address_is_valid(name: str, email: str) -> None:
    assert email_of(Account(id=7, name=name)) == email
    assert re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", email)


class TestTimeout:
    @pytest.mark.parametrize("timeout", ["99", "30001", "soon"])
    def test_out_of_range(self, alice: Client, timeout: str) -> None:
        assert refusal(alice.call("GET", f"/projects?timeout={timeout}"))[0] == 400

    @pytest.mark.django_db(transaction=True)
    def test_a_list_that_takes_too_long(self, api: DjangoClient, account: Account) -> None:
        """Another transaction locks the table, so the query would wait forever."""
        with connection.connection.__class__.connect(connection.connection.info.dsn) as other:
            other.execute("LOCK TABLE controlplane_project IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(OperationalError, match="statement timeout"):
                list_projects(account, after=None, limit=10, timeout=0.1)
            response = api.get("/api/v2/projects?timeout=100")
            assert response.status_code == 503
