"""API keys with limits: one project, read-only, an expiry."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.controlplane.api.test_authentication import NOWHERE, UNAUTHENTICATED
from tests.controlplane.routes import Route, all_routes
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Routes that show a password; also by POST.
SECRETS = ("/connection_uri", "/reveal_password")
BESIDE_THE_PROJECT = {
    *("GET /projects", "GET /projects/shared", "GET /regions", "GET /auth"),
    *("GET /users/me", "GET /users/me/organizations", "GET /status"),
    *("GET /organizations/{org_id}", "GET /mark"),
}


def limited(client: Client, **limits: Any) -> Client:
    """Return a client with a new key of the account that has these limits."""
    made = client.post("/api_keys", {"key_name": "limited", **limits})
    return Client(client.api_url, made["key"])


def within(**delta: float) -> str:
    return (datetime.now(UTC) + timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def ids(standing: Project) -> dict[str, str]:
    """The ids of one resource of each kind in the project."""
    return {
        "project_id": standing.id,
        "branch_id": standing.branch_id,
        "endpoint_id": standing.endpoint_id,
        "operation_id": standing.operations()[0]["id"],
        "role_name": "neondb_owner",
        "database_name": "neondb",
        "org_id": standing.client.get("/users/me/organizations")["organizations"][0]["id"],
        "key_id": str(standing.client.post("/api_keys", {"key_name": "target"})["id"]),
    }


@pytest.fixture(scope="module")
def neighbour(standing: Project) -> Iterator[str]:
    """The id of another project of the same account."""
    made = standing.client.new_project(wait=False)
    yield made["project"]["id"]
    standing.client.finish(made)
    standing.client.delete(f"/projects/{made['project']['id']}")


def reached(route: Route, client: Client, ids: dict[str, str]) -> Any:
    """Return the route's answer. Further names that a route's path has are filled in as well."""
    names = dict.fromkeys(route.names, "0") | ids
    return route.call(client, **names)


class TestReadOnly:
    def test_it_reads_everything_but_passwords_and_changes_nothing(
        self, stack: Stack, standing: Project, ids: dict[str, str]
    ) -> None:
        reader = limited(standing.client, read_only=True)
        password = standing.client.get(
            f"{standing.path}/branches/{standing.branch_id}/roles/neondb_owner/reveal_password"
        )["password"]
        before = standing.client.get(f"{standing.path}/operations")
        for route in all_routes(stack.api_url):
            response = reached(route, reader, ids)
            if route.method != "GET" or route.template.endswith(SECRETS):
                status, message = refusal(response)
                assert (status, "read-only" in message) == (403, True), route
            elif not route.is_for_operators:
                assert response.ok or response.status_code == 404, (route, response.text)
                assert password not in response.text, route
        assert standing.client.get(f"{standing.path}/operations") == before
        assert standing.client.get(standing.path)["project"]["id"] == standing.id

    def test_connection_strings_are_read_without_them(self, standing: Project) -> None:
        path = f"{standing.path}/connection_uri?database_name=neondb&role_name=neondb_owner"
        reader = limited(standing.client, read_only=True)
        assert "neondb_owner@" in reader.get(f"{path}&password=false")["uri"]
        assert refusal(reader.call("GET", f"{path}&password=true"))[0] == 403

    def test_a_key_without_limits_reads_passwords(self, standing: Project) -> None:
        path = f"{standing.path}/connection_uri?database_name=neondb&role_name=neondb_owner"
        assert standing.client.get(path)["uri"]


class TestOneProject:
    @pytest.mark.thorough
    def test_it_reaches_only_what_belongs_to_the_project(
        self, stack: Stack, standing: Project, ids: dict[str, str], neighbour: str
    ) -> None:
        ours = limited(standing.client, project_id=standing.id)
        tried = 0
        for route in all_routes(stack.api_url):
            if str(route) in BESIDE_THE_PROJECT:
                assert reached(route, ours, ids).ok, route
            elif not route.template.startswith("/projects/{project_id}"):
                status, message = refusal(reached(route, ours, ids))
                assert (status, standing.id in message) == (403, True), route
            else:
                status, message = refusal(reached(route, ours, {**ids, "project_id": neighbour}))
                assert (status, neighbour in message) == (403, True), route
                elsewhere = {**ids, "project_id": NOWHERE["project_id"]}
                assert refusal(reached(route, ours, elsewhere)) == (404, "project not found")
                tried += 1
        assert tried > 25

    @pytest.mark.thorough
    def test_it_can_change_its_project(self, standing: Project, neighbour: str) -> None:
        ours = limited(standing.client, project_id=standing.id)
        assert [one["id"] for one in ours.get("/projects")["projects"]] == [standing.id]
        assert len(standing.client.get("/projects")["projects"]) == 2
        assert ours.get("/projects", search=neighbour)["projects"] == []
        branch = ours.post(f"{standing.path}/branches", {"branch": {"name": "ours"}})
        ours.finish(branch)
        ours.finish(ours.delete(f"{standing.path}/branches/{branch['branch']['id']}"))
        name = standing.created["project"]["name"]
        assert ours.patch(standing.path, {"project": {"name": name}})["project"]["name"] == name

    def test_it_cannot_delete_the_project(self, standing: Project) -> None:
        ours = limited(standing.client, project_id=standing.id)
        status, message = refusal(ours.call("DELETE", standing.path))
        assert (status, "may not delete the project itself" in message) == (403, True)

    @pytest.mark.thorough
    def test_another_accounts_project_is_not_found(
        self, standing: Project, alice: Client, bob: Client
    ) -> None:
        ours = limited(standing.client, project_id=standing.id)
        theirs = bob.new_project(wait=False)
        assert refusal(ours.call("GET", f"/projects/{theirs['project']['id']}"))[0] == 404
        body = {"key_name": "x", "project_id": standing.id}
        assert refusal(alice.call("POST", "/api_keys", json=body)) == (404, "project not found")
        assert len(alice.get("/api_keys")) == 1
        bob.finish(theirs)

    @pytest.mark.thorough
    def test_after_the_deletion_of_its_project_it_reaches_nothing(self, alice: Client) -> None:
        made = alice.new_project(wait=False)
        path = f"/projects/{made['project']['id']}"
        ours = limited(alice, project_id=made["project"]["id"])
        other = alice.new_project(wait=False)
        alice.delete(path)
        assert ours.call("GET", path).status_code == 404
        assert ours.get("/projects")["projects"] == []
        assert ours.call("GET", f"/projects/{other['project']['id']}").status_code == 403
        alice.finish(other)


class TestExpiry:
    def test_it_is_valid_until_its_expiry_which_is_returned(
        self, stack: Stack, alice: Client
    ) -> None:
        ends = within(hours=1)
        brief = limited(alice, expires_at=ends)
        shown = brief.get("/api_keys")[0]
        assert "project_id" not in shown
        assert (shown["expires_at"], shown["read_only"]) == (ends, False)
        with stack.database() as connection:
            connection.execute(
                "UPDATE controlplane_apikey SET expires_at = now() WHERE id = %s", [shown["id"]]
            )
        assert refusal(brief.call("GET", "/projects")) == UNAUTHENTICATED
        assert alice.get("/api_keys")[0]["id"] == shown["id"], "to be seen, and revoked"

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("ends", "status"),
        [
            pytest.param(within(seconds=-1), 422, id="a second ago"),
            ("1999-01-01T00:00:00Z", 422),
            ("2099-01-01T00:00:00", 400),
            ("2099-01-01", 400),
            ("9999-12-31T23:59:59-12:00", 400),
            ("tomorrow", 400),
            (4070908800, 400),
            (True, 400),
        ],
    )
    def test_invalid_expiries(self, alice: Client, ends: Any, status: int) -> None:
        body = {"key_name": "x", "expires_at": ends}
        assert refusal(alice.call("POST", "/api_keys", json=body))[0] == status
        assert len(alice.get("/api_keys")) == 1

    def test_a_key_cannot_create_a_key_that_expires_later(self, alice: Client) -> None:
        brief = limited(alice, expires_at=within(hours=2))
        for later in ({}, {"expires_at": within(hours=3)}):
            response = brief.call("POST", "/api_keys", json={"key_name": "x", **later})
            assert refusal(response)[0] == 403
        limited(brief, expires_at=within(hours=1)).get("/projects")


def count_writes(connection: "psycopg.Connection[Any]", key_id: int) -> None:
    """Make the sequence `key_writes` count every write to the key's row."""
    connection.execute("CREATE SEQUENCE key_writes MINVALUE 0 START 0")
    connection.execute(
        "CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('key_writes'); PERFORM pg_sleep(0.2); RETURN NEW; END $$"
    )
    connection.execute(
        "CREATE TRIGGER count_write BEFORE UPDATE ON controlplane_apikey"
        f" FOR EACH ROW WHEN (NEW.id = {key_id}) EXECUTE FUNCTION count_write()"
    )


@pytest.mark.thorough
def test_one_of_many_simultaneous_requests_records_the_use(stack: Stack, alice: Client) -> None:
    made = alice.post("/api_keys", {"key_name": "busy"})
    together = threading.Barrier(12)

    def ask(client: Client) -> int:
        together.wait()
        return client.call("GET", "/users/me").status_code

    with stack.database() as connection:
        try:
            count_writes(connection, made["id"])
            with ThreadPoolExecutor(12) as threads:
                clients = [Client(alice.api_url, made["key"]) for _ in range(12)]
                assert set(threads.map(ask, clients)) == {200}
            writes = connection.execute("SELECT last_value, is_called FROM key_writes").fetchone()
        finally:
            connection.execute("DROP FUNCTION count_write CASCADE")
            connection.execute("DROP SEQUENCE key_writes")
    assert writes == (0, True), "one"
    wait_for(lambda: alice.get("/api_keys")[0]["last_used_at"], "the note")
