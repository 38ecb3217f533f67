"""The rules for an endpoint's attributes are the same for every way of creating or changing one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.models import Account, Branch, Endpoint, Host, Operation, Plan, Project
from controlplane.services import projects
from tests.controlplane.rows import make_host, make_project

Ask = Callable[[dict[str, Any]], Any]


def send(api: DjangoClient, method: str, path: str, body: Any) -> Any:
    return api.generic(
        method, f"/api/v2/projects{path}", json.dumps(body), content_type="application/json"
    )


def message(response: Any) -> str:
    return str(json.loads(response.content).get("message", ""))


@pytest.fixture
def free_project(account: Account, host: Host) -> Project:
    """A project on the free plan, on a host without a pooler. Its branch `bare` has no
    endpoint."""
    Account.objects.filter(id=account.id).update(plan=Plan.FREE)
    made = make_project(account, host)
    Branch.objects.create(project=made, name="bare", current_state="ready")
    return made


@pytest.fixture(params=["POST project", "POST branch", "POST endpoint", "PATCH endpoint"])
def ask(api: DjangoClient, free_project: Project, request: pytest.FixtureRequest) -> Ask:
    """Returns a function that requests attributes of an endpoint, in one of the possible ways."""
    path = f"/{free_project.id}"

    def of_a_project(attributes: dict[str, Any]) -> Any:
        flat = {**attributes, **attributes.get("settings", {})}
        body = {"project": {"default_endpoint_settings": flat}}
        return send(api, "POST", "", body)

    def of_a_branch(attributes: dict[str, Any]) -> Any:
        return send(api, "POST", f"{path}/branches", {"endpoints": [attributes]})

    def of_its_own(attributes: dict[str, Any]) -> Any:
        bare = Branch.objects.get(project=free_project, name="bare")
        body = {"endpoint": {**attributes, "branch_id": bare.id}}
        return send(api, "POST", f"{path}/endpoints", body)

    def changed(attributes: dict[str, Any]) -> Any:
        endpoint = Endpoint.objects.get(project=free_project)
        return send(api, "PATCH", f"{path}/endpoints/{endpoint.id}", {"endpoint": attributes})

    ways: dict[str, Ask] = {
        "POST project": of_a_project,
        "POST branch": of_a_branch,
        "POST endpoint": of_its_own,
        "PATCH endpoint": changed,
    }
    return ways[request.param]


@pytest.mark.parametrize(
    ("attributes", "status", "words"),
    [
        ({"autoscaling_limit_max_cu": 2}, 422, 'the plan "free" allows at most 1'),
        ({"autoscaling_limit_min_cu": 2}, 400, "more than autoscaling_limit_max_cu 1"),
        ({"autoscaling_limit_max_cu": True}, 400, "autoscaling_limit_max_cu"),
        ({"suspend_timeout_seconds": False}, 400, "suspend_timeout_seconds"),
        ({"settings": {"pg_settings": {"port": "1"}}}, 422, '"port" belongs to the platform'),
        ({"settings": {"pg_settings": {"a b": "1"}}}, 400, "not the name of a Postgres setting"),
        (
            {"settings": {"pg_settings": {f"perch.a{i}": "1" for i in range(201)}}},
            422,
            "pg_settings may have at most 200 settings, got 201",
        ),
        (
            {"settings": {"pg_settings": {"perch.a": "x" * 2001}}},
            422,
            'the value of "perch.a" may have at most 2000 characters, got 2001',
        ),
        (
            {"settings": {"pg_settings": {f"perch.a{i}": "x" * 2000 for i in range(9)}}},
            422,
            "settings may have at most 16384 bytes of JSON, got 18",
        ),
        (
            {"settings": {"pgbouncer_settings": {"default_pool_size": "7"}}},
            422,
            "pgbouncer_settings: pooling is not available on the host",
        ),
        (
            {"settings": {"pgbouncer_settings": {"pool_mode": "session"}}},
            422,
            "pgbouncer_settings.pool_mode: cannot be set on this server; these can: client_idle",
        ),
        ({"settings": {"pgbouncer_settings": {"default_pool_size": 7}}}, 400, "default_pool_size"),
    ],
)
def test_what_every_request_refuses(
    ask: Ask, attributes: dict[str, Any], status: int, words: str
) -> None:
    before = sorted(Endpoint.objects.values_list("id", "autoscaling_limit_max_cu", "updated_at"))
    counted = (Project.objects.count(), Branch.objects.count())
    response = ask(attributes)
    assert (response.status_code, words in message(response)) == (status, True), message(response)
    assert before == sorted(
        Endpoint.objects.values_list("id", "autoscaling_limit_max_cu", "updated_at")
    )
    assert (Project.objects.count(), Branch.objects.count()) == counted


@pytest.mark.parametrize("ask", ["POST branch", "POST endpoint", "PATCH endpoint"], indirect=True)
@pytest.mark.parametrize(
    ("attributes", "status", "words"),
    [
        ({"pooler_enabled": True}, 422, "PgBouncer is not installed"),
        (
            {"region_id": "moon"},
            422,
            "region_id: the endpoint must be in its project's region \"lo",
        ),
        ({"provisioner": "x" * 33}, 400, "provisioner"),
        ({"name": "x" * 65}, 400, "name"),
    ],
)
def test_what_is_refused_for_an_endpoint_itself(
    ask: Ask, attributes: dict[str, Any], status: int, words: str
) -> None:
    response = ask(attributes)
    assert (response.status_code, words in message(response)) == (status, True), message(response)


@pytest.mark.parametrize("ask", ["POST branch", "POST endpoint"], indirect=True)
def test_a_disabled_endpoint_is_created_idle(ask: Ask) -> None:
    answer = json.loads(ask({"disabled": True}).content)
    endpoint = answer.get("endpoint") or answer["endpoints"][0]
    assert (endpoint["current_state"], endpoint["disabled"]) == ("idle", True)
    assert "pending_state" not in endpoint
    assert "start_compute" not in [operation["action"] for operation in answer["operations"]]


def test_a_later_smaller_plan_does_not_prevent_other_changes(
    api: DjangoClient, free_project: Project
) -> None:
    Endpoint.objects.filter(project=free_project).update(autoscaling_limit_max_cu=4)
    endpoint = Endpoint.objects.get(project=free_project)
    path = f"/{free_project.id}/endpoints/{endpoint.id}"
    assert send(api, "PATCH", path, {"endpoint": {"disabled": True}}).status_code == 200
    grown = send(api, "PATCH", path, {"endpoint": {"autoscaling_limit_min_cu": 3}})
    assert grown.status_code == 422


class TestMerging:
    """The fields that are sent are merged into the stored object; a map within is replaced."""

    @pytest.fixture
    def endpoint(self, account: Account, host: Host) -> Endpoint:
        endpoint = Endpoint.objects.get(project=make_project(account, host))
        endpoint.settings = {"pg_settings": {"work_mem": "5MB", "jit": "off"}}
        endpoint.save()
        return endpoint

    def patched(self, api: DjangoClient, endpoint: Endpoint, settings: Any) -> Any:
        path = f"/{endpoint.project_id}/endpoints/{endpoint.id}"
        response = send(api, "PATCH", path, {"endpoint": {"settings": settings}})
        assert response.status_code == 200, response.content
        answer = json.loads(response.content)
        endpoint.refresh_from_db()
        assert answer["endpoint"]["settings"] == endpoint.settings
        return answer

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"pgbouncer_settings": {}},
            {"pgbouncer_settings": None},
            {"pgbouncer_settings": {}, "pg_settings": None},
            {"pg_settings": {"work_mem": "5MB", "jit": "off"}},
        ],
    )
    def test_requests_that_change_nothing(
        self, api: DjangoClient, endpoint: Endpoint, settings: Any
    ) -> None:
        before = (endpoint.settings, endpoint.updated_at)
        assert self.patched(api, endpoint, settings)["operations"] == []
        assert (endpoint.settings, endpoint.updated_at) == before

    def test_a_new_endpoint_has_its_projects_settings_and_its_own(
        self, api: DjangoClient, account: Account, host: Host
    ) -> None:
        project = make_project(account, host)
        project.default_endpoint_settings = {
            "pg_settings": {"work_mem": "5MB"},
            "autoscaling_limit_max_cu": 4,
            "suspend_timeout_seconds": 61,
        }
        project.save()
        expected: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({}, {"work_mem": "5MB"}),
            ({"settings": {}}, {"work_mem": "5MB"}),
            ({"settings": {"pg_settings": {"jit": "off"}}}, {"work_mem": "5MB", "jit": "off"}),
            ({"settings": {"pg_settings": {"work_mem": "6MB"}}}, {"work_mem": "6MB"}),
        ]
        for sent, pg_settings in expected:
            response = send(api, "POST", f"/{project.id}/branches", {"endpoints": [sent]})
            (made,) = json.loads(response.content)["endpoints"]
            assert made["settings"] == {"pg_settings": pg_settings}
            assert (made["autoscaling_limit_max_cu"], made["suspend_timeout_seconds"]) == (4, 61)

    def test_settings_of_a_project(self, api: DjangoClient, account: Account, host: Host) -> None:
        project = make_project(account, host)
        steps: list[dict[str, Any]] = [
            {
                "settings": {"quota": {"active_time_seconds": 1}},
                "default_endpoint_settings": {
                    "pg_settings": {"work_mem": "5MB", "jit": "off"},
                    "suspend_timeout_seconds": 60,
                },
            },
            {"settings": {"quota": {"written_data_bytes": 2}}, "default_endpoint_settings": {}},
            {"settings": {}, "default_endpoint_settings": {"pg_settings": {"jit": "on"}}},
            {"settings": None, "default_endpoint_settings": {"pgbouncer_settings": {}}},
        ]
        for sent in steps:
            response = send(api, "PATCH", f"/{project.id}", {"project": sent})
            assert response.status_code == 200, response.content
        project.refresh_from_db()
        assert project.settings == {"quota": {"active_time_seconds": 1, "written_data_bytes": 2}}
        assert project.default_endpoint_settings == {
            "pg_settings": {"jit": "on"},
            "suspend_timeout_seconds": 60,
        }


class TestCreationOfAProject:
    def test_it_is_created_completely_or_not_at_all(
        self, api: DjangoClient, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise OperationalError("the connection was lost")

        monkeypatch.setattr(projects, "schedule", fail)
        assert send(api, "POST", "", {"project": {}}).status_code == 503
        assert not Project.objects.exists()


class TestHosts:
    """What a size may be depends on the hosts of the region, as far as they are known."""

    @pytest.fixture(params=["POST project", "POST endpoint", "PATCH endpoint", "PATCH project"])
    def resized(
        self, api: DjangoClient, account: Account, host: Host, request: pytest.FixtureRequest
    ) -> Callable[[float], Any]:
        project = make_project(account, host)
        path = f"/{project.id}"
        endpoint = Endpoint.objects.get(project=project)

        def send_size(units: float) -> Any:
            size = {"autoscaling_limit_max_cu": units}
            defaults = {"project": {"default_endpoint_settings": size}}
            if request.param == "POST project":
                return send(api, "POST", "", defaults)
            if request.param == "PATCH project":
                return send(api, "PATCH", path, defaults)
            if request.param == "PATCH endpoint":
                Operation.objects.filter(project=project).update(status="finished")
                return send(api, "PATCH", f"{path}/endpoints/{endpoint.id}", {"endpoint": size})
            bare = Branch.objects.create(
                project=project, name=f"{units} of {Branch.objects.count()}", current_state="ready"
            )
            body = {"endpoint": {"branch_id": bare.id, "type": "read_write", **size}}
            return send(api, "POST", f"{path}/endpoints", body)

        return send_size

    def test_sizes(self, host: Host, resized: Callable[[float], Any]) -> None:
        def limit(**figures: Any) -> None:
            Host.objects.filter(id=host.id).update(**figures)

        def refused(units: float, most: str) -> bool:
            answer = resized(units)
            said = answer.json()
            assert (answer.status_code, said["code"]) == (422, "COMPUTE_UNITS_LIMIT_EXCEEDED")
            fields = [one["field"].rpartition(".")[2] for one in said["errors"]]
            assert fields == ["autoscaling_limit_max_cu"]
            return f"room for an endpoint of at most {most} compute units" in said["message"]

        # A host that has not published what it has.
        assert resized(55).status_code < 300
        limit(cpus=2, memory_bytes=8 << 30)
        assert refused(56, "2")
        assert refused(2.25, "2")
        assert resized(2).status_code < 300
        # Its memory is enough for more, and is a little less than its size by name.
        limit(memory_bytes=23 << 30)
        assert refused(6.25, "6")
        assert resized(6).status_code < 300
        # The smallest host has room for the default size.
        limit(cpus=1, memory_bytes=1 << 30)
        assert refused(1.25, "1")
        assert resized(1).status_code < 300
        # The project could be moved to a larger host of its region, unless that is lost.
        large = make_host("large", host.region_id)
        Host.objects.filter(id=large.id).update(cpus=16, memory_bytes=64 << 30)
        assert resized(16).status_code < 300
        assert refused(17, "16")
        Host.objects.filter(id=large.id).update(lost_at=clock.now(), pg_version=None)
        assert refused(15, "1")

    def test_a_size_that_does_not_fit_any_more_stays(
        self, api: DjangoClient, account: Account, host: Host
    ) -> None:
        project = make_project(account, host)
        endpoint = Endpoint.objects.get(project=project)
        Endpoint.objects.filter(id=endpoint.id).update(autoscaling_limit_max_cu=8)
        Host.objects.filter(id=host.id).update(cpus=2, memory_bytes=8 << 30)
        path = f"/{project.id}/endpoints/{endpoint.id}"
        body = {"endpoint": {"autoscaling_limit_max_cu": 8, "suspend_timeout_seconds": 77}}
        assert send(api, "PATCH", path, body).status_code == 200
        body = {"endpoint": {"autoscaling_limit_max_cu": 4}}
        assert send(api, "PATCH", path, body).status_code == 422

    def test_a_default_that_does_not_fit_any_more_is_lowered(
        self, api: DjangoClient, account: Account, host: Host
    ) -> None:
        project = make_project(account, host)
        defaults = {"autoscaling_limit_min_cu": 4, "autoscaling_limit_max_cu": 8}
        Project.objects.filter(id=project.id).update(default_endpoint_settings=defaults)
        Host.objects.filter(id=host.id).update(cpus=2, memory_bytes=8 << 30)
        body = {"endpoints": [{"type": "read_write"}]}
        (made,) = send(api, "POST", f"/{project.id}/branches", body).json()["endpoints"]
        assert [made[name] for name in defaults] == [2, 2]
