"""Neon's command-line client, unmodified: everything except branches."""

import json
from collections.abc import Callable

import psycopg
import pytest

from tests.clients import nodejs
from tests.clients.conftest import Cli
from tests.selection import first_of
from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack

MakeCli = Callable[..., Cli]


@pytest.mark.thorough
def test_the_current_user(neonctl: Cli) -> None:
    me = neonctl("me")
    assert "@" in me["email"]
    assert me["login"]
    (organization,) = neonctl("orgs", "list")
    assert organization["id"].startswith("org-")


@pytest.mark.parametrize("package", first_of(["neonctl", "neon"]))
def test_a_project_from_its_creation_to_its_deletion(
    make_cli: MakeCli, alice: Client, package: str
) -> None:
    cli = make_cli(alice, package)
    made = cli("projects", "create", "--name", f"by {package}", "--cu", "0.5-2")
    project_id = made["project"]["id"]
    assert made["connection_uris"][0]["connection_uri"].startswith("postgresql://")
    assert cli("projects", "get", project_id)["name"] == f"by {package}"
    listed = cli("projects", "list")
    projects = listed["projects"] if isinstance(listed, dict) else listed
    assert project_id in {project["id"] for project in projects}
    assert cli("projects", "update", project_id, "--name", "renamed")["name"] == "renamed"
    assert cli("projects", "delete", project_id)["id"] == project_id
    assert "not found" in cli.refusal("projects", "get", project_id)


@pytest.mark.thorough
def test_what_is_not_offered_is_reported(make_cli: MakeCli, shop: Place) -> None:
    cli = make_cli(shop.client)
    assert "hipaa" in cli.refusal("projects", "update", shop.id, "--hipaa")
    refused = cli.refusal(
        *("vpc", "project", "restrict", "vpce-0a1b2c3d4e5f60718", "--project-id", shop.id)
    )
    assert "not offered by this server" in refused


@pytest.mark.thorough
def test_only_listed_addresses_are_allowed(neonctl: Cli, shop: Place) -> None:
    assert neonctl("ip-allow", "list")["IP_addresses"] == []
    added = neonctl("ip-allow", "add", "127.0.0.1", "192.0.2.0/24")
    assert added["IP_addresses"] == ["127.0.0.1", "192.0.2.0/24"]
    assert shop.is_served()
    removed = neonctl("ip-allow", "remove", "127.0.0.1")
    assert removed["IP_addresses"] == ["192.0.2.0/24"]
    assert "not allowed" in str(shop.refusal())
    assert neonctl("ip-allow", "reset")["IP_addresses"] == []
    assert shop.is_served()
    assert "not a range of addresses" in neonctl.refusal("ip-allow", "add", "somewhere")


@pytest.mark.thorough
def test_roles_and_databases(neonctl: Cli, shop: Place) -> None:
    at = ("--branch", "main")
    assert neonctl("roles", "create", "--name", "ann", *at)["name"] == "ann"
    assert neonctl("databases", "create", "--name", "orders", "--owner-name", "ann", *at)
    assert {one["name"] for one in neonctl("databases", "list", *at)} == {"neondb", "orders"}
    assert {one["name"] for one in neonctl("roles", "list", *at)} == {"ann", "neondb_owner"}
    assert neonctl("databases", "delete", "orders", *at)["name"] == "orders"
    assert neonctl("roles", "delete", "ann", *at)["name"] == "ann"


@pytest.mark.thorough
def test_operations_are_listed(neonctl: Cli, shop: Place) -> None:
    assert {one["id"] for one in neonctl("operations", "list")} == {
        one["id"] for one in shop.operations()
    }


def test_its_connection_strings_work(neonctl: Cli, shop: Place) -> None:
    """The client builds them from the endpoint's host, without a port."""
    for options in ((), ("--pooled",), ("--ssl", "verify-full")):
        told = neonctl("connection-string", "main", "--extended", *options)
        ran = nodejs.run(
            "psql",
            "-XqAtc",
            "SELECT 42",
            told["connection_string"],
            environment={
                "PGPORT": str(shop.stack.proxy_port),
                "PGHOSTADDR": "127.0.0.1",
                "PGSSLROOTCERT": str(shop.stack.state_dir / "tls" / "authority.pem"),
            },
        )
        assert (ran.output, ran.told) == ("42\n", "")


@pytest.mark.thorough
def test_its_connection_string_of_a_past_time_is_refused_by_name(neonctl: Cli, shop: Place) -> None:
    """neonctl builds it itself: from the branch's id, and with the time in `options`."""
    uri = neonctl.text("connection-string", "main@2024-01-01T00:00:00Z").strip()
    with pytest.raises(
        psycopg.OperationalError, match=r"past point in time \(neon_timestamp\) is not"
    ):
        psycopg.connect(uri, port=shop.stack.proxy_port, hostaddr="127.0.0.1")


def test_psql(neonctl: Cli, shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", str(shop.stack.proxy_port))
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    assert "42" in neonctl.text("psql", "main", "--", "-XqAtc", "SELECT 42")


@pytest.mark.thorough
def test_api_keys(make_cli: MakeCli, stack: Stack) -> None:
    client = stack.client()
    cli = make_cli(client)
    made = cli("api-keys", "create", "--name", "ci")
    assert Client(client.api_url, made["key"]).get("/projects") == client.get("/projects")
    listed = cli("api-keys", "list")
    assert "ci" in {one["name"] for one in listed}
    cli.text("api-keys", "revoke", str(made["id"]))
    assert Client(client.api_url, made["key"]).call("GET", "/projects").status_code == 401


@pytest.mark.thorough
def test_any_path(neonctl: Cli, shop: Place) -> None:
    told = json.loads(neonctl.text("api", f"/projects/{shop.id}"))
    assert told["project"]["id"] == shop.id


class TestInADirectory:
    """`link`, `checkout`, `status` and `env pull`, as a developer uses them in a checkout."""

    @pytest.fixture
    def cli(self, make_cli: MakeCli, shop: Place) -> Cli:
        cli = make_cli(shop.client)
        cli.text("link", "--project-id", shop.id, "-y", "--no-env-pull")
        return cli

    @staticmethod
    def context(cli: Cli) -> dict[str, str]:
        told: dict[str, str] = json.loads((cli.home / ".neon").read_text())
        return told

    @pytest.mark.thorough
    def test_link(self, cli: Cli, shop: Place) -> None:
        assert self.context(cli)["projectId"] == shop.id

    @pytest.mark.thorough
    def test_checkout(self, cli: Cli, shop: Place) -> None:
        cli.text("checkout", "main", "--no-env-pull")
        assert self.context(cli)["branch"] == "main"
        cli.text("checkout", "feature", "--create", "--no-env-pull")
        assert "feature" in {one["name"] for one in cli("branches", "list")}
        cli.text("checkout", "main", "--no-env-pull")
        cli.text("branches", "delete", "feature")

    @pytest.mark.thorough
    def test_status(self, cli: Cli, shop: Place) -> None:
        cli.text("checkout", "main", "--no-env-pull")
        assert shop.branch_id in cli.text("status")

    @pytest.mark.thorough
    def test_env_pull(self, cli: Cli, shop: Place) -> None:
        cli.text("checkout", "main", "--no-env-pull")
        cli.text("env", "pull", "--file", ".env")
        pulled = dict(
            line.split("=", 1)
            for line in (cli.home / ".env").read_text().splitlines()
            if "=" in line and not line.startswith("#")
        )
        ran = nodejs.run("psql", "-XqAtc", "SELECT 42", pulled["DATABASE_URL"].strip('"'))
        assert (ran.output, ran.told) == ("42\n", "")
