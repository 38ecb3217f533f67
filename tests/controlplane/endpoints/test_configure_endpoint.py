"""PATCH an endpoint's settings, size and pooling (specification, call 3 and rule 2)."""

from typing import Any

import psycopg
import pytest

from tests.support.project import Project, refusal


def patch(project: Project, **attributes: Any) -> Any:
    return project.client.patch(project.endpoint_path(), {"endpoint": attributes})


def actions(answer: Any) -> list[tuple[str, str]]:
    return [(operation["action"], operation["status"]) for operation in answer["operations"]]


def pg(**settings: str) -> dict[str, dict[str, str]]:
    return {"pg_settings": settings}


class TestSettings:
    def test_it_works(self, project: Project) -> None:
        with project.compute() as connection:
            answer = patch(project, settings=pg(work_mem="9MB"))
            assert actions(answer) == [("apply_config", "running")]
            assert answer["endpoint"]["settings"] == pg(work_mem="9MB")
            assert answer["endpoint"]["pending_state"] == "active"
            project.done(answer)
            # No restart: the open connection sees the new value.
            assert connection.execute("SHOW work_mem").fetchone() == ("9MB",)
        assert project.endpoint()["current_state"] == "active"

    def test_a_setting_that_needs_a_restart_causes_one(self, project: Project) -> None:
        with project.compute() as connection:
            project.change(settings=pg(max_prepared_transactions="3"))
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("SELECT 1")
        assert project.sql("SHOW max_prepared_transactions") == [("3",)]
        assert project.endpoint()["current_state"] == "active"

    def test_settings_that_are_left_out_return_to_their_default(self, project: Project) -> None:
        project.change(settings=pg(work_mem="9MB", statement_timeout="7s"))
        project.change(settings=pg(statement_timeout="7s"))
        assert project.sql("SHOW statement_timeout") == [("7s",)]
        assert project.sql("SHOW work_mem") == [("4MB",)]

    @pytest.mark.thorough
    def test_an_idle_endpoint_checks_settings_and_stays_idle(self, project: Project) -> None:
        project.suspend()
        answer = patch(project, settings=pg(work_mem="9MB"))
        assert actions(answer) == [("apply_config", "running"), ("suspend_compute", "scheduling")]
        assert answer["endpoint"]["current_state"] == "idle"
        assert answer["endpoint"]["pending_state"] == "idle"
        project.done(answer)
        assert not project.is_running()
        project.start()
        assert project.sql("SHOW work_mem") == [("9MB",)]

    @pytest.mark.thorough
    @pytest.mark.parametrize("asleep", [False, True])
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("timezone", "UTC+200", 'invalid value for parameter "TimeZone": "UTC+200"'),
            ("TimeZone", "<far>999", 'invalid value for parameter "TimeZone": "<far>999"'),
        ],
    )
    def test_refused_by_postgres(
        self, standing: Project, asleep: bool, name: str, value: str, words: str
    ) -> None:
        """Values that only Postgres can check."""
        standing.start()
        standing.change(settings=pg(work_mem="9MB"))
        if asleep:
            standing.suspend()
        answer = patch(standing, settings=pg(**{name: value}))
        applied, *suspended = standing.client.finish(answer)

        assert applied["status"] == "failed"
        assert words in applied["error"]
        assert [operation["status"] for operation in suspended] == ["failed"] * asleep
        endpoint = standing.endpoint()
        assert endpoint["settings"] == pg(work_mem="9MB")
        assert endpoint["current_state"] == ("idle" if asleep else "active")
        assert standing.is_running() is not asleep
        standing.start()
        assert standing.sql("SHOW work_mem") == [("9MB",)]

    def test_too_few_connections_to_start(self, standing: Project) -> None:
        """Postgres accepts the value but would not start with it, because the platform reserves
        some."""
        body = {"endpoint": {"settings": pg(max_connections="7")}}
        response = standing.client.call("PATCH", standing.endpoint_path(), json=body)
        status, words = refusal(response)
        assert status == 422
        assert "max_connections: must be from 8 to 450" in words
        standing.change(settings=pg(max_connections="8"))
        assert standing.sql("SHOW max_connections") == [("8",)]


class TestSize:
    @pytest.mark.thorough
    def test_it_works(self, project: Project) -> None:
        assert project.sql("SHOW max_connections") == [("450",)]
        answer = patch(project, autoscaling_limit_min_cu=0.5, autoscaling_limit_max_cu=2)
        assert actions(answer) == [("apply_config", "running")]
        project.done(answer)
        assert project.sql("SHOW max_connections") == [("900",)]
        assert project.sql("SHOW shared_buffers") == [("256MB",)]
        assert project.endpoint()["autoscaling_limit_max_cu"] == 2
