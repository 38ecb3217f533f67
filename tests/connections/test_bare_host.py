"""A host without PgBouncer, and clients with short timeouts."""

import fcntl
from collections.abc import Iterator

import pytest

from tests.support.place import Place
from tests.support.stack import Stack, new_state_dir, running_stack
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A service for this module, in place of the shared one."""
    with (
        new_state_dir() as state_dir,
        running_stack(state_dir, PERCH_PGBOUNCER="", PERCH_WAKE_TIMEOUT="2") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def bare(stack: Stack) -> Place:
    return Place.create(stack, stack.client())


@pytest.mark.thorough
def test_a_request_for_pooling_is_refused_with_the_reason(bare: Place) -> None:
    body = {"endpoint": {"pooler_enabled": True}}
    answer = bare.client.call("PATCH", bare.endpoint_path(), json=body)
    assert answer.status_code == 422
    assert "PgBouncer is not installed" in answer.json()["message"]
    assert not bare.endpoint()["pooler_enabled"]
    answer = bare.client.call(
        "POST",
        f"{bare.path}/endpoints",
        json={
            "endpoint": {
                "branch_id": bare.new_branch_id(name="dev"),
                "type": "read_write",
                "pooler_enabled": True,
            }
        },
    )
    assert answer.status_code == 422


def test_a_pooled_connection_gets_the_reason_and_others_are_served(bare: Place) -> None:
    assert "PgBouncer is not installed" in str(bare.refusal(pooled=True))
    assert bare.query("SELECT 1") == (1,)


@pytest.mark.thorough
def test_a_client_gets_an_error_if_the_start_takes_too_long(bare: Place) -> None:
    bare.suspend()
    with (bare.stack.state_dir / "locks" / bare.branch_id).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "the compute did not start within 2 seconds" in str(bare.refusal())
    wait_for(lambda: bare.state() == "active", "the start that was asked for")
    assert len(bare.endpoint_operations("start_compute")) == 2
    assert bare.query("SELECT 1") == (1,)
