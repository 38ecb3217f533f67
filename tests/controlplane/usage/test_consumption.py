"""`/consumption` and `/consumption_history`: shapes, bounds, pages, and the number of queries."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.models import Account, Branch, Endpoint, Host, Plan, Project
from controlplane.models.consumed import next_period, period_of, previous_period
from controlplane.operations.rounds.retention import forget_projects
from tests.controlplane.rows import make_project

HOUR = timedelta(hours=1)
HISTORIES = ("account", "projects", "v2/projects")


def text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def use(project: Project, since: datetime, until: datetime) -> None:
    """Make the project's endpoint run during that time."""
    endpoint = project.endpoints.all()[0]
    endpoint.enter("active", now=since)  # type: ignore[arg-type]
    endpoint.enter("idle", now=until)  # type: ignore[arg-type]


@pytest.fixture
def projects(account: Account, host: Host) -> list[Project]:
    """Five projects. The first ran during the hour before the last, the last one for some days."""
    made = [make_project(account, host) for _ in range(5)]
    made.sort(key=lambda project: project.id)
    now = timezone.now()
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    use(made[0], this_hour - 2 * HOUR, this_hour - HOUR)
    use(made[-1], now - timedelta(days=3), now)
    stranger = Account.objects.create(name="bob", plan=Plan.UNLIMITED)
    use(make_project(stranger, host), now - HOUR, now)
    return made


def history(api: DjangoClient, which: str, **query: Any) -> Any:
    now = timezone.now()
    asked = {"from": text(now - 24 * HOUR), "to": text(now), "granularity": "hourly", **query}
    if which == "v2/projects":
        asked.setdefault("metrics", "compute_unit_seconds")
    return api.get(f"/api/v2/consumption_history/{which}", asked)


class TestByPeriod:
    def test_it_works(self, api: DjangoClient, projects: list[Project]) -> None:
        body = api.get("/api/v2/consumption/projects").json()
        assert [one["project_id"] for one in body["projects"]] == [one.id for one in projects]
        assert body["periods_in_response"] == 1
        assert body["pagination"] == {"cursor": projects[-1].id}
        now = timezone.now()
        one = body["projects"][-1]
        assert one["period_start"] == text(period_of(now))
        assert one["period_end"] == text(next_period(now))
        ran = min(timedelta(days=3), now - period_of(now)).total_seconds()
        assert one["active_time_seconds"] == pytest.approx(ran, abs=5)
        assert one.keys() == {
            *("project_id", "period_id", "previous_period_id", "period_start", "period_end"),
            *("data_storage_bytes_hour", "synthetic_storage_size", "data_transfer_bytes"),
            *("written_data_bytes", "compute_time_seconds", "active_time_seconds", "updated_at"),
        }

    def test_several_periods_are_linked(self, api: DjangoClient, projects: list[Project]) -> None:
        now = timezone.now()
        query: Any = {"from": text(previous_period(now)), "to": text(now), "limit": 1}
        body = api.get("/api/v2/consumption/projects", query).json()
        before, present = body["projects"]
        assert body["periods_in_response"] == 2
        assert before["period_end"] == present["period_start"]
        assert before["period_id"] == present["previous_period_id"]

    def test_pages(self, api: DjangoClient, projects: list[Project]) -> None:
        seen: list[str] = []
        query: dict[str, Any] = {"limit": 2}
        while True:
            body = api.get("/api/v2/consumption/projects", query).json()
            seen += [one["project_id"] for one in body["projects"]]
            if "pagination" not in body:
                break
            query["cursor"] = body["pagination"]["cursor"]
        assert seen == [project.id for project in projects]

    def test_removed_projects_are_counted(self, api: DjangoClient, projects: list[Project]) -> None:
        gone, now = projects[0], timezone.now()
        use(gone, now - timedelta(seconds=1), now)  # in this month, also on its first day
        before = api.get("/api/v2/consumption/projects").json()["projects"][0]
        gone.deleted_at = timezone.now()
        gone.save()
        forget_projects([gone.id])
        body = api.get("/api/v2/consumption/projects").json()["projects"][0]
        assert body | {"updated_at": ""} == before | {"updated_at": ""}
        cursor = api.get("/api/v2/consumption/projects", {"cursor": gone.id}).json()
        assert cursor["projects"][0]["project_id"] == projects[1].id

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ({"limit": 0}, 400),
            ({"limit": 1001}, 400),
            ({"cursor": "no-where-12345678"}, 400),
            ({"from": "yesterday"}, 400),
            ({"from": "2026-10-02T00:00:00Z", "to": "2026-10-01T00:00:00Z"}, 400),
            ({"from": "2020-01-01T00:00:00Z"}, 406),
        ],
    )
    def test_refusals(self, api: DjangoClient, query: dict[str, Any], status: int) -> None:
        assert api.get("/api/v2/consumption/projects", query).status_code == status


class TestHistory:
    def test_of_the_account(self, api: DjangoClient, projects: list[Project]) -> None:
        periods = history(api, "account").json()["periods"]
        frames = [frame for period in periods for frame in period["consumption"]]
        assert periods[-1].keys() == {"period_id", "period_plan", "period_start", "consumption"}
        assert [frame["timeframe_start"] for frame in frames] == sorted(
            frame["timeframe_start"] for frame in frames
        )
        this_hour = timezone.now().replace(minute=0, second=0, microsecond=0)
        hour = next(f for f in frames if f["timeframe_start"] == text(this_hour - 2 * HOUR))
        # The sum of the two that ran then.
        assert hour == {
            "timeframe_start": text(this_hour - 2 * HOUR),
            "timeframe_end": text(this_hour - HOUR),
            "active_time_seconds": 7200,
            "compute_time_seconds": 7200,
            "written_data_bytes": 0,
            "synthetic_storage_size_bytes": 0,
        }

    def test_of_its_projects(self, api: DjangoClient, projects: list[Project]) -> None:
        body = history(api, "projects", include_v1_metrics="true").json()
        assert [one["project_id"] for one in body["projects"]] == [one.id for one in projects]
        (frame,) = body["projects"][0]["periods"][-1]["consumption"]
        assert frame["active_time_seconds"] == 3600
        assert frame["logical_size_bytes"] == frame["data_storage_bytes_hour"] == 0
        assert body["projects"][1]["periods"] == []

    def test_metrics(self, api: DjangoClient, projects: list[Project]) -> None:
        metrics = "compute_unit_seconds,public_network_transfer_bytes"
        body = history(api, "v2/projects", metrics=metrics, project_ids=projects[0].id).json()
        (one,) = body["projects"]
        assert one["periods"][-1]["consumption"][0]["metrics"] == [
            {"metric_name": "compute_unit_seconds", "value": 3600},
            {"metric_name": "public_network_transfer_bytes", "value": 0},
        ]

    @pytest.mark.parametrize("which", ["account", "projects"])
    def test_chosen_totals(self, api: DjangoClient, projects: list[Project], which: str) -> None:
        """Those that Neon's document requires are always there."""

        def frame(**query: Any) -> set[str]:
            body = history(api, which, **query).json()
            one = body if which == "account" else body["projects"][0]
            return set(one["periods"][-1]["consumption"][0])

        usual = frame()
        v1 = {"data_storage_bytes_hour", "logical_size_bytes", "logical_size_bytes_hour"}
        assert usual >= {"active_time_seconds", "compute_time_seconds", "written_data_bytes"}
        assert not usual & v1
        assert frame(include_v1_metrics="true") == usual | v1
        chosen = "active_time_seconds,logical_size_bytes"
        assert frame(metrics=chosen) == usual | {"logical_size_bytes"}
        # The older parameter is then ignored, as Neon's document says.
        assert frame(metrics=["written_data_bytes"], include_v1_metrics="true") == usual
        refused = history(api, which, metrics="ram_bytes")
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "metrics")
        assert 'no such metric: "ram_bytes"' in refused.json()["message"]

    def test_root_and_child_branches(self, api: DjangoClient, projects: list[Project]) -> None:
        project = projects[1]
        root = project.branches.get()
        child = Branch.objects.create(project=project, name="child", parent=root)
        Branch.objects.filter(project=project).update(
            logical_size=36_000_000_000, history_bytes=4_000_000_000
        )
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE controlplane_meter SET stored_since = stored_since - interval '1 hour'"
                " WHERE branch_id = %s",
                [child.id],
            )
        query = {
            "metrics": [
                *("root_branch_bytes_month", "child_branch_bytes_month"),
                "instant_restore_bytes_month",
            ],
            "project_ids": f"{project.id},no-where-12345678",
            "granularity": "daily",
        }
        (one,) = history(api, "v2/projects", **query).json()["projects"]
        totals: dict[str, int] = {}
        for period in one["periods"]:
            for frame in period["consumption"]:
                for metric in frame["metrics"]:
                    name = metric["metric_name"]
                    totals[name] = totals.get(name, 0) + metric["value"]
        assert 0 <= totals["root_branch_bytes_month"] < 1_000_000_000
        assert totals["child_branch_bytes_month"] == pytest.approx(36e9, rel=0.05)
        assert totals["instant_restore_bytes_month"] == pytest.approx(4e9, rel=0.05)
        (listed,) = [
            one
            for one in api.get("/api/v2/consumption/projects").json()["projects"]
            if one["project_id"] == project.id
        ]
        assert listed["synthetic_storage_size"] == 2 * 40_000_000_000

    def test_by_days_and_months(self, api: DjangoClient, projects: list[Project]) -> None:
        now = timezone.now()
        for granularity, back in (("daily", 59), ("monthly", 300)):
            body = history(
                api, "account", granularity=granularity, **{"from": text(now - back * 24 * HOUR)}
            ).json()
            frames = [f for period in body["periods"] for f in period["consumption"]]
            total = sum(frame["active_time_seconds"] for frame in frames)
            assert total == pytest.approx(3 * 86_400 + 3600, abs=10)

    def test_a_running_endpoint_is_counted_in_each_hour(
        self, api: DjangoClient, projects: list[Project]
    ) -> None:
        endpoint = projects[2].endpoints.get()
        began = timezone.now() - 5 * HOUR
        endpoint.enter("active", now=began)  # type: ignore[arg-type]
        body = history(api, "projects", project_ids=projects[2].id).json()
        frames = [f for p in body["projects"][0]["periods"] for f in p["consumption"]]
        assert len(frames) == 6
        assert all(frame["active_time_seconds"] == 3600 for frame in frames[1:-1])

    @pytest.mark.parametrize("which", HISTORIES)
    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ({"granularity": "weekly"}, 400),
            ({"from": ""}, 400),
            ({"from": "2027-01-31T12:00:00"}, 400),
            ({"from": "2020-01-01T00:00:00Z", "granularity": "monthly"}, 406),
            ({"from": "-61d", "granularity": "daily"}, 406),
            ({"from": "-169h"}, 406),
            ({"from": "-168h"}, 200),
            ({"to": "-48h"}, 400),
        ],
    )
    def test_bounds(
        self, api: DjangoClient, which: str, query: dict[str, str], status: int
    ) -> None:
        unit = {"h": HOUR, "d": 24 * HOUR}
        asked = {
            name: text(timezone.now() + int(value[:-1]) * unit[value[-1]])
            if value.startswith("-")
            else value
            for name, value in query.items()
        }
        response = history(api, which, **asked)
        assert response.status_code == status, response.content
        if status == 406:
            assert "outside the boundaries" in response.json()["message"]

    @pytest.mark.parametrize(
        "query",
        [
            {"limit": 101},
            {"cursor": "no-where-12345678"},
            {"project_ids": ",".join(["a"] * 101)},
            {"metrics": "nonsense"},
            {"metrics": ""},
        ],
    )
    def test_refusals(self, api: DjangoClient, query: dict[str, Any]) -> None:
        assert history(api, "v2/projects", **query).status_code == 400


@pytest.mark.parametrize("size", [3, 30])
def test_the_number_of_queries(api: DjangoClient, account: Account, host: Host, size: int) -> None:
    for _ in range(size):
        use(make_project(account, host), timezone.now() - HOUR, timezone.now())
    for path, budget in (("/consumption/projects?limit=1000", 4), *HISTORY_BUDGETS):
        with CaptureQueriesContext(connection) as captured:
            now = timezone.now()
            query = f"from={text(now - HOUR)}&to={text(now)}&granularity=hourly"
            full = path if "?" in path else f"{path}?{query}"
            assert api.get(f"/api/v2{full}").status_code == 200
        assert len(captured) == budget, path


# One query for the key and, where there are pages, one for the projects.
HISTORY_BUDGETS = (("/consumption_history/account", 2), ("/consumption_history/projects", 3))


def test_another_accounts_projects_are_not_listed(
    api: DjangoClient, host: Host, projects: list[Project]
) -> None:
    theirs = Endpoint.objects.exclude(project__in=projects).get().project_id
    body = history(api, "projects", project_ids=theirs).json()
    assert body == {"projects": []}
    response = history(api, "projects", cursor=theirs)
    assert response.status_code == 400
