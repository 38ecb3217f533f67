"""What operators do with accounts: by the API and by `manage.py accounts`."""

import io
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.models import Account, ApiKey, Event, Host, Plan, Project
from controlplane.operations.rounds.deleted_projects import remove_unrecovered
from controlplane.operations.rounds.retention import forget_deleted
from controlplane.services import account_management as management
from controlplane.services.accounts import KeySpec, create_key, revoke_key
from controlplane.services.errors import Conflict, Forbidden, Unprocessable
from controlplane.services.rules import plan_limits
from tests.controlplane.rows import make_project
from tests.support.client import Client
from tests.support.place import Place
from tests.support.project import refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture
def bob(host: Host, settings: Any) -> Account:
    """Another account, in a service that keeps deleted projects for a day."""
    settings.RECOVERY_HOURS = 24
    return Account.objects.create(name="bob", plan=Plan.FREE)


def ran(*arguments: str) -> list[str]:
    output = io.StringIO()
    call_command("accounts", *arguments, stdout=output)
    return output.getvalue().splitlines()


def types_of(account: Account) -> list[str]:
    return list(Event.objects.filter(account=account).order_by("id").values_list("type", flat=True))


class TestByApi:
    def test_it_works(self, operator: Client) -> None:
        name = f"made-{clock.now():%H%M%S%f}"
        made = operator.post("/accounts", {"account": {"name": name}})["account"]
        path = f"/accounts/{made['id']}"
        assert (made["plan"], made["projects"], made["disabled_at"]) == ("free", 0, None)
        assert made in operator.get("/accounts")["accounts"]
        changed = operator.patch(path, {"account": {"plan": "standard"}})["account"]
        assert changed["plan"] == "standard"

        key = operator.post(f"{path}/api_keys", {"key_name": "first"})
        client = Client(operator.api_url, key["key"])
        assert client.get("/users/me")["plan"] == "standard"
        operator.patch(path, {"account": {"disabled": True}})
        status, message = refusal(client.call("GET", "/users/me"))
        assert (status, "disabled" in message) == (403, True)
        operator.patch(path, {"account": {"disabled": False}})
        assert client.get("/users/me")["login"] == name

        assert [one["id"] for one in operator.get(f"{path}/api_keys")] == [key["id"]]
        events = client.get("/events")["events"]
        assert [event["type"] for event in reversed(events)] == [
            *("account.created", "account.updated", "api_key.created"),
            *("account.disabled", "account.enabled"),
        ]
        # The account sees that an operator acted, but not from where.
        assert {event["actor"]["name"] for event in events} == {"up, of the operator local"}
        assert not [event for event in events if event["actor"].get("address")]
        operator.delete(f"{path}/api_keys/{key['id']}")
        assert client.call("GET", "/users/me").status_code == 401
        assert refusal(operator.call("DELETE", f"{path}?name=another"))[0] == 422
        deleted = operator.delete(f"{path}?name={name}")["account"]
        assert deleted["deleted_at"]

    def test_a_key_that_an_operator_makes_can_be_limited(
        self, stack: Stack, operator: Client
    ) -> None:
        name = f"limited-{clock.now():%H%M%S%f}"
        body = {"account": {"name": name, "plan": "standard"}}
        made = operator.post("/accounts", body)["account"]
        assert made["plan"] == "standard"
        path = f"/accounts/{made['id']}/api_keys"
        ends = f"{clock.now() + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
        limits = {"read_only": True, "expires_at": ends}
        key = operator.post(path, {"key_name": "limited", **limits})
        assert key["name"] == "limited"
        told = Client(operator.api_url, key["key"]).get("/auth")
        assert limits.items() <= told.items()
        # A project of the account, and of no other.
        elsewhere = {"key_name": "x", "project_id": "quiet-heron-12345678"}
        assert refusal(operator.call("POST", path, json=elsewhere))[0] == 404

    def test_it_is_only_for_operators(self, alice: Client) -> None:
        mine = alice.get("/users/me")["id"]
        for method, path, body in (
            ("GET", "/accounts", None),
            ("GET", f"/accounts/{mine}", None),
            ("POST", "/accounts", {"account": {"name": "another"}}),
            ("PATCH", f"/accounts/{mine}", {"account": {"plan": "unlimited"}}),
            ("DELETE", f"/accounts/{mine}?name=x", None),
            ("POST", f"/accounts/{mine}/recover", None),
            ("GET", f"/accounts/{mine}/api_keys", None),
            ("POST", f"/accounts/{mine}/api_keys", {"key_name": "x"}),
            ("DELETE", f"/accounts/{mine}/api_keys/1", None),
        ):
            status, message = refusal(alice.call(method, path, json=body))
            assert (status, "PERCH_OPERATORS" in message) == (403, True), (method, path)

    def test_an_operator_cannot_be_disabled(self, operator: Client) -> None:
        mine = operator.get("/users/me")["id"]
        answer = operator.call("PATCH", f"/accounts/{mine}", json={"account": {"disabled": True}})
        assert refusal(answer)[0] == 409


def test_disabling_ends_connections_at_once(stack: Stack, alice: Client, operator: Client) -> None:
    place = Place.create(stack, alice)
    path = f"/accounts/{alice.get('/users/me')['id']}"
    with place.connect() as open_one:
        assert open_one.execute("SELECT 1").fetchone() == (1,)
        operator.patch(path, {"account": {"disabled": True}})
        with pytest.raises(psycopg.OperationalError):
            wait_for(lambda: not open_one.execute("SELECT 1"), "the end of the connection")
    assert "disabled" in str(place.refusal())
    wait_for(lambda: not place.is_running(), "the suspend")
    operator.patch(path, {"account": {"disabled": False}})
    wait_for(place.is_served, "new connections")
    alice.delete(place.path)


class TestDeletion:
    def test_it_works(self, bob: Account, host: Host) -> None:
        before = make_project(bob, host)
        Project.objects.filter(id=before.id).update(
            deleted_at=clock.now() - timedelta(hours=1),
            recoverable_until=clock.now() + timedelta(hours=1),
        )
        projects = [make_project(bob, host) for _ in range(2)]
        management.delete(management.find_account(name="bob"), typed="bob")
        bob.refresh_from_db()
        assert bob.deleted_at
        assert bob.recoverable_until
        assert not Project.objects.filter(account=bob, deleted_at=None).exists()
        management.recover(management.find_account(name="bob"))
        open_again = Account.objects.filter(deleted_at=None, disabled_at=None)
        assert open_again.filter(recoverable_until=None, name="bob").exists()
        # Only what was deleted with the account is recovered.
        living = Project.objects.filter(account=bob, deleted_at=None)
        assert set(living.values_list("id", flat=True)) == {one.id for one in projects}
        assert [kind for kind in types_of(bob) if kind.startswith("account.")] == [
            *("account.deleted", "account.recovered")
        ]

    def test_a_disabled_account_is_disabled_after_its_recovery(self, bob: Account) -> None:
        management.disable(bob)
        management.delete(bob, typed="bob")
        management.recover(bob)
        bob.refresh_from_db()
        assert bob.disabled_at
        assert bob.deleted_at is None

    def test_keys_are_unknown_meanwhile(self, bob: Account, client: DjangoClient) -> None:
        _, key = ApiKey.issue(bob, "tests")
        client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {key}"
        assert client.get("/api/v2/users/me").status_code == 200
        management.delete(management.find_account(name="bob"), typed="bob")
        assert client.get("/api/v2/users/me").status_code == 401
        management.recover(management.find_account(name="bob"))
        assert client.get("/api/v2/users/me").status_code == 200

    def test_all_of_it_is_recoverable_whatever_the_plan_keeps(
        self, bob: Account, host: Host
    ) -> None:
        for _ in range(5):
            make_project(bob, host)
        management.delete(management.find_account(name="bob"), typed="bob")
        remove_unrecovered(host)
        assert Project.objects.filter(account=bob, recoverable_until__isnull=False).count() == 5

    def test_it_can_be_too_late(self, bob: Account) -> None:
        account = management.find_account(name="bob")
        with pytest.raises(Conflict, match="not deleted"):
            management.recover(account)
        management.delete(account, typed="bob")
        with pytest.raises(Conflict, match="recover it instead"):
            management.enable(account)
        Account.objects.filter(id=bob.id).update(recoverable_until=clock.now())
        with pytest.raises(Conflict, match="any more"):
            management.recover(account)

    def test_its_rows_are_removed_with_those_of_its_projects(
        self, bob: Account, host: Host
    ) -> None:
        project = make_project(bob, host)
        ApiKey.issue(bob, "tests")
        management.delete(management.find_account(name="bob"), typed="bob")
        long_ago = clock.now() - timedelta(days=31)
        Account.objects.filter(id=bob.id).update(deleted_at=long_ago, recoverable_until=long_ago)
        forget_deleted(host)
        assert Account.objects.filter(id=bob.id).exists()
        Project.objects.filter(id=project.id).update(deleted_at=long_ago, recoverable_until=None)
        forget_deleted(host)
        assert not Account.objects.filter(id=bob.id).exists()
        assert not ApiKey.objects.filter(account_id=bob.id).exists()


class TestCommand:
    def test_it_works(self, bob: Account, host: Host) -> None:
        make_project(bob, host)
        assert "ann is created on the plan standard." in ran("create", "ann", "--plan", "standard")
        (line,) = [line for line in ran() if line.startswith("bob")]
        assert line.split() == ["bob", "free", "1", f"{clock.now():%Y-%m-%d}"]
        ran("set-plan", "bob", "standard")
        ran("disable", "bob")
        assert next(line for line in ran("list") if line.startswith("bob")).endswith("disabled")
        ran("enable", "bob")
        key, _ = ApiKey.issue(bob, "laptop")
        assert any("laptop" in line for line in ran("keys", "list", "bob"))
        ran("keys", "revoke", "bob", str(key.id))
        assert not any("laptop" in line for line in ran("keys", "list", "bob"))
        (said,) = ran("delete", "bob", "--confirm", "bob")
        assert "it can be recovered" in said
        ran("recover", "bob")
        assert [kind for kind in types_of(bob) if not kind.startswith("project.")] == [
            *("account.updated", "account.disabled", "account.enabled", "api_key.revoked"),
            *("account.deleted", "account.recovered"),
        ]

    def test_the_name_is_asked_for(self, bob: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("builtins.input", lambda prompt: "no")
        with pytest.raises(CommandError, match="not that of the account"):
            ran("delete", "bob")
        monkeypatch.setattr("builtins.input", lambda prompt: "bob")
        assert "bob is deleted" in ran("delete", "bob")[-1]


def test_only_operators_act_for_others(bob: Account, settings: Any) -> None:
    with pytest.raises(Forbidden), management.acting_for(bob):
        pass
    settings.OPERATORS = {"bob"}
    with management.acting_for(bob):
        pass


def test_a_key_that_expires_makes_none_that_lasts_longer(
    bob: Account, host: Host, client: DjangoClient, settings: Any
) -> None:
    settings.OPERATORS = {"bob"}
    ends = clock.now() + timedelta(minutes=10)
    _, key = ApiKey.issue(bob, "short", expires_at=ends)
    for account in (bob, Account.objects.create(name="ann")):
        made = client.post(
            f"/api/v2/accounts/{account.id}/api_keys",
            {"key_name": "for ever"},
            content_type="application/json",
            headers={"Authorization": f"Bearer {key}"},
        )
        assert made.status_code == 403, made.content


def test_an_account_has_so_many_keys(bob: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_limits, "MAX_API_KEYS", 3)
    expired, _ = ApiKey.issue(bob, "expired", expires_at=clock.now())
    made = [create_key(bob, KeySpec(name="new"))[0] for _ in range(3)]
    assert not ApiKey.objects.filter(id=expired.id).exists()
    with pytest.raises(Unprocessable, match="at most 3 API keys"):
        create_key(bob, KeySpec(name="too many"))
    revoke_key(bob, made[0].id)
    create_key(bob, KeySpec(name="in its place"))
