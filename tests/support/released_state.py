"""State directories of released versions: what lies in them, and how they are kept.

`tests.make_released_state` makes one by the released version's own code and packs it into
`tests/fixtures/<version>.tar.xz`; `tests/controlplane/test_upgrades.py` unpacks each and brings it
up with the present code.
"""

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
# Beside the state directory in the archive: what it must hold after every upgrade.
CONTENTS = "contents.json"
# Made anew where it is missing, or of processes that are gone.
LEFT_OUT = ("log", "up.log", "supervisord.conf", "supervisord.pid", "sockets", "ballast")
# As large as all that is packed, so that what clusters have in common is stored once.
DICTIONARY = 256 << 20  # bytes
ROWS = 1000
WORK_MEM = "8MB"


@dataclass(frozen=True)
class Login:
    """A way to connect, which must still be good after an upgrade."""

    endpoint_id: str
    role: str
    password: str
    database: str
    # What `SELECT count(*) FROM kept` answers.
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
            # A release may offer no TLS.
            sslmode="disable",
            connect_timeout=40,
            autocommit=True,
            # Not every PgBouncer keeps prepared statements.
            prepare_threshold=None,
        )


@dataclass(frozen=True)
class Contents:
    """What a state directory was filled with."""

    version: str
    key: str  # of the API
    project_id: str
    # The branch `main`, and `child`, which was made of it.
    branch_id: str
    child_id: str
    logins: list[Login]
    # Empty where the version has none.
    snapshots: list[str] = field(default_factory=list)


def fill(client: Client, proxy_port: int, *, version: str) -> Contents:
    """Make a project with all that this version has to keep, by what every version offers."""
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
        # Kept by the data alone; no version is told of it.
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
    """See that all of it is there, and that every login works, by way of the pooler too."""
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
    """Write what `unpack` reads: the state directory of a stopped service, as small as may be."""
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
    """Put the packed state directory at `state_dir`, which is there and empty."""
    with lzma.open(archive) as compressed, tarfile.open(fileobj=compressed) as tar:
        # Not "data": it forgets directories' modes, and Postgres insists on them.
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
