"""An endpoint's `pgbouncer_settings`: their effect on its pooler, while it runs and later."""

import shutil
from typing import Any

import psycopg
import pytest

from controlplane.compute.pooler import pooler_version
from controlplane.compute.settings.pooler_settings import ALLOWED, pooler_complaint
from tests.support.place import Place
from tests.support.project import locked, refusal
from tests.support.waiting import wait_for


def settings_file(place: Place) -> str:
    directory = place.stack.state_dir / "branches" / place.branch_id
    return (directory / "pgbouncer-settings.ini").read_text()


def waits_in_vain(place: Place) -> bool:
    """Return whether a second transaction gets no server connection beside an open one."""
    with place.connect(pooled=True) as one, place.connect(pooled=True) as other:
        with one.transaction():
            one.execute("SELECT 1")
            try:
                other.execute("SELECT 1")
            except psycopg.OperationalError as error:
                return "query_wait_timeout" in str(error)
        return False


NARROW = {"default_pool_size": "1", "query_wait_timeout": "1"}


def pool(**settings: str) -> dict[str, Any]:
    return {"settings": {"pgbouncer_settings": settings}}


def test_a_change_is_an_operation_that_a_running_pooler_applies(place: Place) -> None:
    with place.connect(pooled=True) as staying:
        assert staying.execute("SELECT 1").fetchone() == (1,)
        before = place.pooler()
        changed = place.change(**pool(**NARROW))
        assert [row["action"] for row in changed["operations"]] == ["apply_config"]
        assert changed["endpoint"]["settings"]["pgbouncer_settings"] == NARROW
        wait_for(lambda: waits_in_vain(place), "the pooler to apply its settings")
        # No client was dropped.
        assert staying.execute("SELECT 1").fetchone() == (1,)
        assert place.pooler() == before
    place.change(**pool())
    assert "pgbouncer_settings" not in place.endpoint()["settings"]
    wait_for(lambda: not waits_in_vain(place), "the pooler to restore its settings")


def test_an_owner_can_turn_off_the_reset_after_each_transaction(place: Place) -> None:
    def kept() -> bool:
        with place.connect(pooled=True) as client:
            client.execute("SET work_mem = '7MB'")
            return client.execute("SHOW work_mem").fetchone() == ("7MB",)

    assert not kept()
    place.change(**pool(server_reset_query_always="0", default_pool_size="1"))
    wait_for(kept, "the pooler to reset nothing")
    place.change(**pool())
    wait_for(lambda: not kept(), "the pooler to reset again")


@pytest.mark.thorough
def test_settings_apply_after_a_suspend_and_from_the_projects_defaults(
    place: Place,
) -> None:
    place.change(**pool(**NARROW))
    place.suspend()
    assert waits_in_vain(place)
    defaults = {"pgbouncer_settings": {"client_idle_timeout": "77"}}
    body = {"project": {"default_endpoint_settings": defaults}}
    project = place.client.patch(place.path, body)["project"]
    assert project["default_endpoint_settings"] == defaults
    sent = {"branch": {"name": "child"}, "endpoints": [pool(query_timeout="60")]}
    made = place.done(place.client.post(f"{place.path}/branches", sent))["endpoints"][0]
    assert made["settings"]["pgbouncer_settings"] == {
        "client_idle_timeout": "77",
        "query_timeout": "60",
    }
    file = place.stack.state_dir / "branches" / made["branch_id"] / "pgbouncer-settings.ini"
    assert file.read_text() == "client_idle_timeout = 77\nquery_timeout = 60\n"


@pytest.mark.thorough
def test_every_allowed_setting_is_accepted_by_this_pooler(place: Place) -> None:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert program is not None
    known = {
        name: str(bounds.most(1))
        for name, bounds in ALLOWED.items()
        if pooler_version(program) >= bounds.since
    }
    place.change(**pool(**known))
    assert place.query("SELECT 1", pooled=True) == (1,)
    log = (place.stack.state_dir / "branches" / place.branch_id / "pgbouncer.log").read_text()
    assert "ERROR" not in log


@pytest.mark.thorough
def test_a_cancelled_change_restores_the_previous_settings(place: Place) -> None:
    place.change(**pool(query_timeout="60"))
    with locked(place.stack, place.branch_id):
        body = {"endpoint": pool(query_timeout="99")}
        (operation,) = place.client.patch(place.endpoint_path(), body)["operations"]
        path = f"{place.path}/operations/{operation['id']}"
        place.client.post(f"{path}/cancel")
    assert place.client.ended(place.id, operation["id"])["status"] == "cancelled"
    assert place.endpoint()["settings"]["pgbouncer_settings"] == {"query_timeout": "60"}
    assert settings_file(place) == "query_timeout = 60\n"


@pytest.mark.thorough
def test_a_change_that_postgres_refuses_restores_the_poolers_settings_too(place: Place) -> None:
    wanted = {
        "pg_settings": {"timezone": "UTC+200"},
        "pgbouncer_settings": {"query_timeout": "99"},
    }
    body = {"endpoint": {"settings": wanted}}
    answer = place.client.patch(place.endpoint_path(), body)
    assert [row["status"] for row in place.client.finish(answer)] == ["failed"]
    assert "pgbouncer_settings" not in place.endpoint()["settings"]
    assert settings_file(place) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pool_mode", "session", "cannot be set on this server; these can: client_idle_timeout, d"),
        ("auth_query", "SELECT 1", "cannot be set on this server"),
        ("default_pool_size", "451", 'must be a whole number from 1 to 450, got "451"'),
        ("default_pool_size", "0", "must be a whole number from 1"),
        ("query_wait_timeout", "1.5", "must be a whole number from 0 to 86400"),
        ("query_wait_timeout", "", "must be a whole number"),
        ("query_wait_timeout", "7\n%include /etc/passwd", "control characters"),
    ],
)
def test_what_is_refused(shop: Place, name: str, value: str, words: str) -> None:
    before, operations = shop.endpoint(), shop.endpoint_operations()
    body = {"endpoint": pool(**{name: value})}
    response = shop.client.call("PATCH", shop.endpoint_path(), json=body)
    status, message = refusal(response)
    assert (status in (400, 422), words in message, name in message) == (True, True, True)
    assert (shop.endpoint(), shop.endpoint_operations()) == (before, operations)


def test_the_keeping_of_prepared_statements_cannot_be_turned_off() -> None:
    """PgBouncer would pass their names on, to whichever server connection is free."""
    for value, is_refused in (("0", True), ("00", True), ("1", False), ("1000", False)):
        words = pooler_complaint("max_prepared_statements", value, max_cu=1, version=(1, 25))
        assert (words is not None) == is_refused
