"""What an account may have by its plan, and the commands that create accounts and keys."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import LIMITS, Account, ApiKey, Branch, Event, Host, Plan, Project
from controlplane.models.branch import Database, Role
from tests.controlplane.rows import make_project, send
from tests.support.client import Client
from tests.support.project import Project as StandingProject
from tests.support.stack import Stack

FREE = LIMITS[Plan.FREE]


def refusal(response: Any) -> tuple[int, str, str]:
    body = json.loads(response.content)
    return response.status_code, body["code"], body["message"]


@pytest.fixture
def free_account(account: Account) -> Account:
    Account.objects.filter(id=account.id).update(plan=Plan.FREE)
    account.refresh_from_db()
    return account


@pytest.fixture
def project(free_account: Account, host: Host) -> Project:
    """A project whose default branch has a role and a database."""
    made = make_project(free_account, host)
    branch = made.branches.get()
    Role.objects.create(branch=branch, name="owner", verifier="-")
    Database.objects.create(branch=branch, name="stock", owner_name="owner")
    return made


def path_of(project: Project) -> str:
    return f"/projects/{project.id}"


def test_the_limit_of_projects_holds_for_simultaneous_requests(stack: Stack, free: Client) -> None:
    assert FREE.projects is not None
    for _ in range(FREE.projects - 1):
        free.new_project(wait=False)
    body: Any = {"project": {}}
    with ThreadPoolExecutor(4) as threads:
        clients = [free.another() for _ in range(4)]
        answers = list(threads.map(lambda one: one.call("POST", "/projects", json=body), clients))
    assert sorted(one.status_code for one in answers) == [201, 422, 422, 422]
    refused = next(one for one in answers if not one.ok).json()
    assert refused["code"] == "PROJECTS_LIMIT_EXCEEDED"
    assert refused["message"].startswith("user projects limit of 3 exceeded, got 3")
    projects = [one["id"] for one in free.get("/projects")["projects"]]
    assert len(projects) == FREE.projects
    # A deleted project does not count.
    free.delete(f"/projects/{projects[0]}")
    assert free.call("POST", "/projects", json=body).status_code == 201
    for project in free.get("/projects")["projects"]:
        free.delete(f"/projects/{project['id']}")


def test_branches(api: DjangoClient, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, Plan.FREE, replace(FREE, branches_of_project=2))
    path = f"{path_of(project)}/branches"
    assert send(api, "POST", path, {}).status_code == 201
    status, code, message = refusal(send(api, "POST", path, {}))
    assert (status, code) == (422, "BRANCHES_LIMIT_EXCEEDED")
    assert message.startswith('project branches limit of 2 exceeded, got 2; plan:"free"')


def test_endpoints(api: DjangoClient, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, Plan.FREE, replace(FREE, endpoints_of_project=1))
    bare = Branch.objects.create(project=project, name="bare", current_state="ready")
    for path, body in (
        ("/endpoints", {"endpoint": {"branch_id": bare.id}}),
        ("/branches", {"branch": {"name": "x"}, "endpoints": [{"type": "read_write"}]}),
    ):
        answer = refusal(send(api, "POST", path_of(project) + path, body))
        assert answer[:2] == (422, "ENDPOINTS_LIMIT_EXCEEDED"), path
    assert not Branch.objects.filter(name="x").exists(), "refused as a whole"


def test_roles_and_databases(api: DjangoClient, project: Project) -> None:
    branch = project.branches.get()
    path = f"{path_of(project)}/branches/{branch.id}"
    for kind, most in (("role", FREE.roles_of_branch), ("database", FREE.databases_of_branch)):
        assert most is not None
        for number in range(most):
            body = {kind: {"name": f"{kind}{number}", "owner_name": "owner"}}
            response = send(api, "POST", f"{path}/{kind}s", body)
            if number < most - 1:
                assert response.status_code == 201, response.content
        assert refusal(response)[:2] == (422, f"{kind.upper()}S_LIMIT_EXCEEDED")


def test_history(api: DjangoClient, project: Project) -> None:
    assert FREE.history_seconds is not None
    more = {"project": {"history_retention_seconds": FREE.history_seconds + 1}}
    for method, path in (("POST", "/projects"), ("PATCH", path_of(project))):
        status, code, message = refusal(send(api, method, path, more))
        assert (status, code) == (422, "HISTORY_RETENTION_LIMIT_EXCEEDED")
        assert f"at most {FREE.history_seconds} seconds" in message
    # A value from a larger plan may be sent back, as by clients that send every field.
    Project.objects.update(**more["project"])
    assert send(api, "PATCH", path_of(project), more).status_code == 200


def test_the_limits_are_returned(api: DjangoClient, account: Account, host: Host) -> None:
    for plan, limits in LIMITS.items():
        Account.objects.filter(id=account.id).update(plan=plan)
        me = json.loads(send(api, "GET", "/users/me").content)
        assert me["plan"] == plan
        expected = [
            -1 if one is None else one for one in (limits.projects, limits.branches_of_project)
        ]
        assert [me["projects_limit"], me["branches_limit"]] == expected
        assert me["max_autoscaling_limit"] == limits.largest_compute
    project = make_project(account, host)
    Account.objects.filter(id=account.id).update(plan=Plan.STANDARD)
    shown = json.loads(send(api, "GET", path_of(project)).content)["project"]
    assert shown["owner"]["branches_limit"] == LIMITS[Plan.STANDARD].branches_of_project
    assert shown["owner"]["subscription_type"] == "launch"


def test_the_proxy_is_notified_of_a_new_plan(stack: Stack, standing: StandingProject) -> None:
    with stack.database() as connection:
        connection.execute("LISTEN perch_endpoints")
        connection.execute(
            "UPDATE controlplane_account SET plan = 'unlimited' WHERE id = %s",
            [standing.client.get("/users/me")["id"]],
        )
        heard = {one.payload for one in connection.notifies(timeout=5, stop_after=1)}
    assert heard == {standing.endpoint_id}


def command(name: str, *arguments: str) -> str:
    printed = StringIO()
    call_command(name, *arguments, stdout=printed)
    return printed.getvalue()


class TestCommands:
    def test_an_account_is_created_on_the_free_plan_by_default(self, db: None) -> None:
        assert "plan      free" in command("create_account", "--name", "ann")
        printed = command("create_account", "--name", "ben", "--plan", "standard")
        assert ("plan      standard" in printed, "projects" in printed) == (True, True)
        assert dict(Account.objects.values_list("name", "plan")) == {
            "ann": "free",
            "ben": "standard",
        }
        assert Event.objects.filter(type="account.created").count() == 2

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--name", "ann"], 'account already exists; name:"ann", plan:"free"'),
            (["--name", " "], "must have 1 to 64 characters"),
            (["--name", "x" * 65], "must have 1 to 64 characters"),
            (["--name", "new", "--plan", "gold"], "use one of: free, standard, unlimited"),
        ],
    )
    def test_an_invalid_account(self, db: None, arguments: list[str], words: str) -> None:
        Account.objects.create(name="ann")
        with pytest.raises(CommandError, match=words):
            command("create_account", *arguments)
        assert Account.objects.count() == 1

    def test_a_key_creates_its_account_on_the_free_plan(self, db: None) -> None:
        key = command("create_api_key", "--account", "ann", "--name", "k").strip()
        row = ApiKey.objects.get(digest=ApiKey.digest_of(key))
        assert (row.account.plan, row.project_id, row.read_only, row.expires_at) == (
            *("free", None, False),
            None,
        )

    def test_a_limited_key(self, account: Account, host: Host) -> None:
        project = make_project(account, host)
        ends = (timezone.now() + timedelta(days=9)).replace(microsecond=0)
        key = command(
            *("create_api_key", "--account", account.name, "--name", "k", "--read-only"),
            *("--project", project.id, "--expires", ends.isoformat()),
        ).strip()
        row = ApiKey.objects.get(digest=ApiKey.digest_of(key))
        assert (row.project_id, row.read_only, row.expires_at) == (project.id, True, ends)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--project", "no-where-12345678"], "project not found"),
            (["--expires", "2001-01-01"], "must be in the future"),
            (["--expires", "soon"], "is not a time"),
        ],
    )
    def test_an_invalid_key(self, db: None, arguments: list[str], words: str) -> None:
        with pytest.raises(CommandError, match=words):
            command("create_api_key", "--account", "ann", "--name", "k", *arguments)
        assert not Account.objects.exists(), "nor is there an account for it"
