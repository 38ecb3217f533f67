"""Takes what SQL did to a compute's roles and databases into the branch's rows: passwords, logins,
what was made, renamed or dropped, and who owns what (specification, section 11).

Called wherever rows and catalog could differ: by the proxy, which notices at a login and in a look
every few seconds, by the looks of the worker, and by the operations before a compute is changed,
copied or stopped. What the API has changed and the compute does not know yet stands above it.

Passwords are moved: once the rows hold one, the compute holds a placeholder in its place. Where a
crash comes in between, the next reading finds it again. One that is set meanwhile stays there.

Locks: the catalog's own, the last before the project's row; never the branch's.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import InterfaceError, OperationalError
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from controlplane.actors import SQL, acting_as
from controlplane.compute import compute
from controlplane.compute.branch_data import data_dir
from controlplane.compute.catalog_reading import (
    Found,
    end_clients,
    end_sessions_without_login,
    placeholder_of,
    read_catalog,
    read_mark,
    replace_password,
)
from controlplane.compute.filesystem import (
    catalog_lock,
    forget_catalog_lock,
    lock_branches,
)
from controlplane.compute.pooler import admit_roles, stop_pooler
from controlplane.compute.session import Session, session, socket_dir
from controlplane.models import UNFINISHED, Branch, BranchState, Endpoint, Operation, Role
from controlplane.operations.catalog_rows import CatalogRows
from controlplane.operations.locks import locked_project

log = logging.getLogger(__name__)

# Seconds for each statement in a compute that may hang, and for another reading under way.
BOUND = 3.0
LOCK_WITHIN = 10.0
# The same before a stop, which whoever asked for waits for.
LAST_BOUND = 2.0
# Readings in a row: each but the first comes of what was set during the one before.
MOST_READINGS = 4


def take_in(endpoint_id: str) -> None:
    """Bring the rows to what SQL did in the endpoint's compute, if it runs.

    Raises psycopg.Error where the compute does not answer, LockTimeout.
    """
    endpoint = Endpoint.objects.select_related("branch").filter(id=endpoint_id).first()
    if endpoint is not None:
        take_in_branch(endpoint.branch)


def take_in_branch(branch: Branch, *, is_last: bool = False) -> None:
    """As `take_in`, of whichever endpoint's compute runs on the branch.

    `is_last` ends all clients' sessions before: then nothing comes after what was read.
    """
    endpoint_id = compute.running_endpoint(branch.id)
    if endpoint_id is None or branch.current_state != BranchState.READY:
        return
    bound, within = (LAST_BOUND, LAST_BOUND) if is_last else (BOUND, LOCK_WITHIN)
    with (
        holding_catalog(branch.id, within=within),
        acting_as(SQL),
        session(socket_dir(endpoint_id), bound=bound) as connection,
    ):
        # The endpoint may have been given to another branch meanwhile.
        if not is_compute_of(connection, branch.id):
            return
        if is_last:
            stop_pooler(branch.id)  # which would give its clients new sessions
            end_clients(connection)
        _take_in(branch.id, connection)


def take_in_before_stop(branch: Branch) -> None:
    """As the last before the branch's compute is stopped; one that does not answer is stopped all
    the same, and read once it is up again."""
    try:
        take_in_branch(branch, is_last=True)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        # Whatever it answers keeps nobody from stopping it: it may be no Postgres by now.
        log.warning("catalog unread", extra={"branch": branch.id, "error": repr(error)})


def is_compute_of(connection: Session, branch_id: str) -> bool:
    """Whether the session is in the compute that runs on the branch. Raises psycopg.Error."""
    row = connection.execute("SELECT current_setting('data_directory')").fetchone()
    return row is not None and Path(str(row[0])) == data_dir(branch_id)


@contextmanager
def holding_catalog(branch_id: str, *, within: float = LOCK_WITHIN) -> Iterator[None]:
    """Against every other who reads the branch's catalog, or tells the pooler of its roles: so an
    older reading never replaces a newer one. Raises LockTimeout."""
    with lock_branches(catalog_lock(branch_id), timeout=within):
        try:
            yield
        finally:
            # Who comes once the branch was removed has made the file anew.
            if not data_dir(branch_id).exists():
                forget_catalog_lock(branch_id)


def admit_to_pooler(branch_id: str) -> None:
    """Have the branch's pooler know the roles that may log in. Raises LockTimeout."""
    with holding_catalog(branch_id):
        admit_roles(branch_id, Role.that_may_connect(branch_id))


def _take_in(branch_id: str, connection: Session) -> None:
    """The caller holds the catalog."""
    for _ in range(MOST_READINGS):
        known = Branch.objects.values_list("catalog_mark", flat=True).get(id=branch_id)
        if read_mark(connection) == known:
            return
        found = read_catalog(connection)
        if _put_placeholders(branch_id, connection, found):
            found = read_catalog(connection)
        # Before the rows lead a new role of that name to the sessions of an old one.
        end_sessions_without_login(connection)
        for oid, password, replacement in _write(branch_id, found):
            replace_password(connection, oid, password, replacement)
        admit_roles(branch_id, Role.that_may_connect(branch_id))


def _put_placeholders(branch_id: str, connection: Session, found: Found) -> bool:
    """For roles that were made before there were any, or by an older release; whether there were
    such. To be done before the rows know their number: from then on a missing password is one that
    SQL has removed."""
    blank = {role.name: role.oid for role in found.roles if role.password is None}
    unseen = Role.objects.filter(
        branch_id=branch_id, compute_oid=None, deleted_at=None, name__in=blank
    ).exclude(verifier="")
    rows = list(unseen.values_list("name", "verifier"))
    for name, verifier in rows:
        replace_password(connection, blank[name], None, placeholder_of(verifier))
    return bool(rows)


def _write(branch_id: str, found: Found) -> list[tuple[int, str, str | None]]:
    """Bring the rows to what was found; returns the passwords that the compute is to give up:
    whose, which, and for what."""
    project_id = Branch.objects.values_list("project_id", flat=True).get(id=branch_id)
    with locked_project(project_id) as project:
        branch = Branch.objects.get(id=branch_id)
        # Its first reading is of what was copied: what no row of it knows came with that.
        is_first = not branch.catalog_mark
        rows = CatalogRows(
            project,
            branch,
            now=clock.now(),
            takes_passwords=not (is_first and branch.source and branch.source.protected),
        )
        passwords = rows.bring_to(found)
        # What is still to be copied of it will hold the same, and passwords no more. What is to
        # keep the data of another once that is replaced gets its rows with it.
        being_made = Operation.objects.filter(branch_id=OuterRef("id"), status__in=UNFINISHED)
        for child in Branch.objects.filter(
            Exists(being_made),
            Q(parent=branch) | Q(schema_of=branch),
            current_state=BranchState.INIT,
            deleted_at=None,
        ):
            CatalogRows(
                project,
                child,
                now=clock.now(),
                is_told=False,
                takes_passwords=not branch.protected,
            ).bring_to(found)
        Branch.objects.filter(id=branch_id).update(catalog_mark=found.mark)
    return passwords
