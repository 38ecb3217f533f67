"""State directories of released versions: their contents, and how they are stored.

`tests.make_released_state` makes one with the released version's own code and packs it into
`tests/fixtures/<version>.tar.xz`. `tests/controlplane/deployment/test_versions.py` unpacks each and
starts the present code on it."""

import json
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.support.client import Client

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# In the archive beside the state directory: what must still be there after every upgrade.
CONTENTS = "contents.json"
# Files that are made anew if they are missing, or that belong to processes that have ended.
LEFT_OUT = ("log", "up.log", "supervisord.conf", "supervisord.pid", "sockets", "ballast")
# As large as all packed data, so that what clusters have in common is stored once.
DICTIONARY = 256 << 20  # bytes
ROWS = 1000
WORK_MEM = "8MB"


@dataclass(frozen=True)
class Login:
    """A login that must still work after an upgrade."""

    endpoint_id: str
    role: str
    password: str
    database: str
    # The answer to `SELECT count(*) FROM kept`.
    rows: int

    def connect(self, proxy_port: int, *, pooled: bool = False) -> "psycopg.Connection[Any]":
        name = self.endpoint_id + ("-pooler" if pooled else "")
        return psycopg.connect(
            host="127.0.0.1",
            port=proxy_port,
            user=self.role,
            password=self.password,
            dbname=self.database,
            options=f"endpoint={name}",
            # A release may not offer TLS.
            sslmode="disable",
            connect_timeout=40,
            autocommit=True,
            # Not every PgBouncer supports prepared statements.
            prepare_threshold=None,
        )


@dataclass(frozen=True)
class Contents:
    """The contents of a filled state directory."""

    version: str
    key: str  # the API key
    project_id: str
    # The branch `main`, and `child`, which was copied from it.
    branch_id: str
    child_id: str
    logins: list[Login]
    # Empty if the version has none.
    snapshots: list[str] = field(default_factory=list)


def fill(client: Client, proxy_port: int, *, version: str) -> Contents:
    """Create a project with everything that this version must preserve, by calls that every version
    has."""
    created = client.new_project(name="kept")
    path = f"/projects/{created['project']['id']}"
    branch = f"{path}/branches/{created['branch']['id']}"
    parameters = created["connection_uris"][0]["connection_parameters"]
    owner = Login(
        endpoint_id=created["endpoints"][0]["id"],
        role=parameters["role"],
        password=parameters["password"],
        database=parameters["database"],
        rows=ROWS,
    )
    settings = {"pg_settings": {"work_mem": WORK_MEM}}
    changed = {"endpoint": {"settings": settings}}
    _done(client, client.patch(f"{path}/endpoints/{owner.endpoint_id}", changed))
    made = _done(client, client.post(f"{branch}/roles", {"role": {"name": "reader"}}))
    reader = Login(**{**asdict(owner), "role": "reader", "password": made["role"]["password"]})
    _done(
        client,
        client.post(f"{branch}/databases", {"database": {"name": "Other", "owner_name": "reader"}}),
    )
    with owner.connect(proxy_port) as connection:
        connection.execute(f"CREATE TABLE kept AS SELECT generate_series(1, {ROWS}) AS number")
        connection.execute("GRANT SELECT ON kept TO reader")
        # Only the data has this; no version stores it in rows.
        connection.execute("CREATE INDEX ON kept (number)")
    with owner.connect(proxy_port, pooled=True) as connection:
        connection.execute("SELECT 1")
    child = _done(
        client,
        client.post(
            f"{path}/branches",
            {
                "branch": {"name": "child", "parent_id": created["branch"]["id"]},
                "endpoints": [{"type": "read_write"}],
            },
        ),
    )
    on_child = Login(
        **{**asdict(owner), "endpoint_id": child["endpoints"][0]["id"], "rows": ROWS + 1}
    )
    with on_child.connect(proxy_port) as connection:
        connection.execute("INSERT INTO kept VALUES (0)")
    return Contents(
        version=version,
        key=client.key,
        project_id=created["project"]["id"],
        branch_id=created["branch"]["id"],
        child_id=child["branch"]["id"],
        logins=[owner, reader, on_child],
        snapshots=list(_snapshots(client, branch)),
    )


def check(client: Client, proxy_port: int, contents: Contents) -> None:
    """Check that everything is still there, and that every login works, also through the pooler."""
    path = f"/projects/{contents.project_id}"
    assert [one["id"] for one in client.get("/projects")["projects"]] == [contents.project_id]
    branches = {one["id"]: one for one in client.get(f"{path}/branches")["branches"]}
    assert branches[contents.child_id]["parent_id"] == contents.branch_id
    endpoint = client.get(f"{path}/endpoints/{contents.logins[0].endpoint_id}")["endpoint"]
    assert endpoint["current_state"] == "idle"
    assert endpoint["settings"]["pg_settings"] == {"work_mem": WORK_MEM}
    branch = f"{path}/branches/{contents.branch_id}"
    names = {one["name"] for one in client.get(f"{branch}/databases")["databases"]}
    assert names == {contents.logins[0].database, "Other"}
    operations = client.get(f"{path}/operations", limit=1000)["operations"]
    assert "create_timeline" in {one["action"] for one in operations}
    snapshots = {one["id"] for one in client.get(f"{path}/snapshots")["snapshots"]}
    assert snapshots >= set(contents.snapshots)
    for login in contents.logins:
        for pooled in (False, True):
            with login.connect(proxy_port, pooled=pooled) as connection:
                row = connection.execute("SELECT count(*) FROM kept").fetchone()
                assert row == (login.rows,), login
    with contents.logins[0].connect(proxy_port) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == (WORK_MEM,)


def pack(state_dir: Path, contents: Contents, archive: Path) -> None:
    """Write the archive for `unpack`: the state directory of a stopped service, as small as
    possible."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": DICTIONARY}]
    described = state_dir / CONTENTS
    described.write_text(json.dumps(asdict(contents), indent=1) + "\n")
    try:
        with (
            lzma.open(archive, "wb", filters=filters) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as tar,
        ):
            tar.add(state_dir, ".", filter=_without_what_is_made_anew)
    finally:
        described.unlink()


def unpack(archive: Path, state_dir: Path) -> Contents:
    """Unpack the state directory into `state_dir`, which exists and is empty."""
    with lzma.open(archive) as compressed, tarfile.open(fileobj=compressed) as tar:
        # Not the filter "data": it drops the modes of directories, which Postgres requires.
        tar.extractall(state_dir, filter="tar")
    described = state_dir / CONTENTS
    stored = json.loads(described.read_text())
    described.unlink()
    stored["logins"] = [Login(**login) for login in stored["logins"]]
    return Contents(**stored)


def _done(client: Client, answer: Any) -> Any:
    for operation in client.finish(answer):
        assert operation["status"] == "finished", operation
    return answer


def _snapshots(client: Client, branch: str) -> Iterator[str]:
    if client.call("GET", branch.partition("/branches")[0] + "/snapshots").status_code == 200:
        yield _done(client, client.post(f"{branch}/snapshot"))["snapshot"]["id"]


def _without_what_is_made_anew(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(entry.name).parts[:1] in [(name,) for name in LEFT_OUT] or entry.isfifo():
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
