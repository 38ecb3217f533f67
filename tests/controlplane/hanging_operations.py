"""Operations that hang: the endpoints of an account are on branches whose locks the test holds."""

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import ExitStack

from tests.support.client import Client
from tests.support.project import Project, locked
from tests.support.stack import Stack
from tests.support.waiting import wait_for

PER_PROJECT = 8

COPY_PROJECT = """
INSERT INTO controlplane_project
SELECT (jsonb_populate_record(p, jsonb_build_object(
    'id', %(copy)s::text, 'account_id', k.account_id))).*
FROM controlplane_project p, controlplane_apikey k
WHERE p.id = %(project)s AND k.digest = encode(sha256(%(key)s::bytea), 'hex')
"""
COPY_BRANCHES = """
INSERT INTO controlplane_branch
SELECT (jsonb_populate_record(b, jsonb_build_object(
    'id', 'br-' || %(copy)s || '-' || n, 'project_id', %(copy)s::text, 'name', n::text,
    'default', n = 1))).*
FROM controlplane_branch b, generate_series(1, %(number)s) n
WHERE b.project_id = %(project)s AND b.default
"""
COPY_ENDPOINTS = """
INSERT INTO controlplane_endpoint
SELECT (jsonb_populate_record(e, jsonb_build_object(
    'id', 'ep-' || %(copy)s || '-' || n, 'project_id', %(copy)s::text,
    'branch_id', 'br-' || %(copy)s || '-' || n, 'current_state', 'idle'))).*
FROM controlplane_endpoint e, generate_series(1, %(number)s) n
WHERE e.project_id = %(project)s
LIMIT %(number)s
"""
UNFINISHED = """
SELECT count(*) FROM controlplane_operation
WHERE project_id LIKE %s AND status IN ('scheduling', 'running', 'cancelling')
"""
FORGET = "UPDATE controlplane_{} SET deleted_at = now() WHERE {} LIKE %s"


class Crowd:
    """Idle endpoints of an account of its own. Only their rows exist, so their operations do
    nothing."""

    def __init__(self, model: Project, size: int) -> None:
        self.stack: Stack = model.stack
        self.client: Client = self.stack.client()
        self.name = f"crowd-{secrets.token_hex(4)}"
        self.size = size
        self._projects: list[str] = []
        with self.stack.database() as connection:
            for position in range(0, size, PER_PROJECT):
                copy = f"{self.name}-{position}"
                values = {
                    "project": model.id,
                    "copy": copy,
                    "number": min(PER_PROJECT, size - position),
                    "key": self.client.key,
                }
                for statement in (COPY_PROJECT, COPY_BRANCHES, COPY_ENDPOINTS):
                    connection.execute(statement, values)
                self._projects.append(copy)

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield the project of each endpoint, and its number there."""
        for position in range(self.size):
            yield self._projects[position // PER_PROJECT], position % PER_PROJECT + 1

    def start(self) -> list[str]:
        """Request the start of every endpoint. Returns the ids of the operations, in order."""
        answers = [
            self.client.post(f"/projects/{project}/endpoints/ep-{project}-{number}/start")
            for project, number in self.places()
        ]
        return [operation["id"] for answer in answers for operation in answer["operations"]]

    def settle(self) -> None:
        """Wait until none of its operations is in progress, and delete it."""
        with self.stack.database() as connection:
            mine = [self.name + "%"]
            wait_for(
                lambda: connection.execute(UNFINISHED, mine).fetchone() == (0,),
                "the end of the crowd's operations",
            )
            for table, column in (("endpoint", "project_id"), ("branch", "project_id")):
                connection.execute(FORGET.format(table, column), mine)
            connection.execute(FORGET.format("project", "id"), mine)


@contextlib.contextmanager
def crowd(model: Project, size: int) -> Iterator[Crowd]:
    """A crowd whose branches are locked, so that every operation on them hangs until the end.

    `model` is a project whose rows are copied.
    """
    made = Crowd(model, size)
    try:
        with ExitStack() as locks:
            for project, number in made.places():
                locks.enter_context(locked(made.stack, f"br-{project}-{number}"))
            yield made
    finally:
        made.settle()
