"""Copies into a branch's rows what SQL did to roles and databases in its compute: passwords,
logins, what was created, renamed or dropped, and who owns what (specification, section 11).

Called wherever the rows and the compute's catalog could differ: by the proxy, which notices a
difference at a login and when it polls the compute every few seconds; by the worker's rounds, which
poll computes too; and by operations before they change, copy or stop a compute. A change by the
API that the compute does not have yet takes precedence over SQL.

A password is moved: once a row holds its verifier, the compute's role gets a placeholder instead.
If the process crashes between these two steps, the next reading finds the password again. If SQL
sets another password meanwhile, that one stays in the compute until the next reading.

Lock order: this module acquires the branch's catalog lock and after it the project's row. It never
acquires the branch's own lock.
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
from controlplane.compute.catalog.reading import (
    Found,
    end_clients,
    end_sessions_without_login,
    forget_passwords,
    placeholder_of,
    read_catalog,
    read_mark,
    replace_password,
)
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.filesystem import (
    catalog_lock,
    forget_catalog_lock,
    lock_branches,
)
from controlplane.compute.pooler import admit_roles, renew_servers, stop_pooler
from controlplane.compute.processes.session import Session, session, socket_dir
from controlplane.models import UNFINISHED, Branch, BranchState, Endpoint, Operation, Role
from controlplane.operations.catalog.rows import CatalogRows, wanted
from controlplane.operations.locks import locked_project

log = logging.getLogger(__name__)

# Seconds that a statement in a compute, which may hang, and the wait for another reading of the
# same catalog may take.
STATEMENT_TIMEOUT = 3.0
LOCK_TIMEOUT = 10.0
# The bound of both before a compute is stopped, because somebody waits for that stop.
LAST_TIMEOUT = 2.0
# The most readings in one call. Each further one reads what changed during the one before.
MAX_READINGS = 4


def import_catalog(endpoint_id: str) -> None:
    """Update the rows with what SQL did in the endpoint's compute, if that compute runs.

    Raises psycopg.Error if the compute does not answer, LockTimeout if another reading of the
    catalog takes too long.
    """
    endpoint = Endpoint.objects.select_related("branch").filter(id=endpoint_id).first()
    if endpoint is not None:
        import_branch_catalog(endpoint.branch)


def import_branch_catalog(branch: Branch, *, is_last: bool = False) -> None:
    """Do the same as `import_catalog` for the branch, whichever endpoint's compute runs on it.

    With `is_last`, end all clients' sessions first, so that nothing can change after the reading.
    """
    endpoint_id = compute.running_endpoint(branch.id)
    if endpoint_id is None or branch.current_state != BranchState.READY:
        return
    bound, timeout = (LAST_TIMEOUT, LAST_TIMEOUT) if is_last else (STATEMENT_TIMEOUT, LOCK_TIMEOUT)
    with (
        holding_catalog(branch.id, timeout=timeout),
        acting_as(SQL),
        session(socket_dir(endpoint_id), bound=bound) as connection,
    ):
        # The endpoint may have been reassigned to another branch meanwhile.
        if not is_compute_of(connection, branch.id):
            return
        if is_last:
            stop_pooler(branch.id)  # the pooler would open new sessions for its clients
            end_clients(connection)
        _import(branch.id, connection, socket_dir(endpoint_id))


def import_before_stop(branch: Branch) -> None:
    """Call `import_branch_catalog` for the last time before the branch's compute is stopped. A
    compute that does not answer is stopped without this reading, and is read after its next start.
    """
    try:
        import_branch_catalog(branch, is_last=True)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        # No answer of the compute may prevent the stop. It may not even be Postgres any more.
        log.warning("catalog unread", extra={"branch": branch.id, "error": repr(error)})


def is_compute_of(connection: Session, branch_id: str) -> bool:
    """Return whether the session's compute runs on the branch. Raises psycopg.Error."""
    row = connection.execute("SELECT current_setting('data_directory')").fetchone()
    return row is not None and Path(str(row[0])) == data_dir(branch_id)


@contextmanager
def holding_catalog(branch_id: str, *, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the branch's catalog lock, which everything holds that writes a reading of the branch's
    catalog to the rows or gives the pooler its roles. An older reading therefore never replaces a
    newer one. Raises LockTimeout."""
    with lock_branches(catalog_lock(branch_id), timeout=timeout):
        try:
            yield
        finally:
            # A caller that comes after the branch was removed has created the lock file again.
            if not data_dir(branch_id).exists():
                forget_catalog_lock(branch_id)


def admit_to_pooler(branch_id: str) -> None:
    """Give the branch's pooler the roles that may log in. Raises LockTimeout."""
    with holding_catalog(branch_id):
        admit_roles(branch_id, Role.login_names(branch_id))


def _import(branch_id: str, connection: Session, sockets: Path) -> None:
    """Read the catalog until it equals what the rows know. The caller holds the catalog lock."""
    for _ in range(MAX_READINGS):
        branch = Branch.objects.select_related("project__account").get(id=branch_id)
        if read_mark(connection) == branch.catalog_mark:
            return
        found = read_catalog(connection, *wanted(branch.project, branch))
        if _put_placeholders(branch_id, connection, found):
            found = read_catalog(connection, *wanted(branch.project, branch))
        if found.unread_roles and not _takes_passwords(branch):
            forget_passwords(connection, but=[role.oid for role in found.roles])
        # Before the rows admit a new role with the name of an old one: a pooler could otherwise
        # give the old role's sessions to the new role.
        end_sessions_without_login(connection)
        for oid, password, replacement in _write(branch_id, found):
            replace_password(connection, oid, password, replacement)
        admit_roles(branch_id, Role.login_names(branch_id))
        renew_servers(branch_id, sockets)


def _takes_passwords(branch: Branch) -> bool:
    """The first reading of a branch reads copied data: what has no row came with the copy."""
    is_first = not branch.catalog_mark
    return not (is_first and branch.source and branch.source.protected)


def _put_placeholders(branch_id: str, connection: Session, found: Found) -> bool:
    """Give a placeholder to roles that were created without one, as by an older release; return
    whether there were any. This must happen before the rows store the roles' oids: once a row has
    its `compute_oid`, a missing password means that SQL removed it."""
    blank = {role.name: role.oid for role in found.roles if role.password is None and role.in_group}
    unseen = Role.objects.filter(
        branch_id=branch_id, compute_oid=None, deleted_at=None, name__in=blank
    ).exclude(verifier="")
    rows = list(unseen.values_list("name", "verifier"))
    for name, verifier in rows:
        replace_password(connection, blank[name], None, placeholder_of(verifier))
    return bool(rows)


def _write(branch_id: str, found: Found) -> list[tuple[int, str, str | None]]:
    """Update the rows with what was found. Returns, for each password that the compute has to give
    up, the role's oid, the password and its replacement."""
    project_id = Branch.objects.values_list("project_id", flat=True).get(id=branch_id)
    with locked_project(project_id) as project:
        branch = Branch.objects.get(id=branch_id)
        rows = CatalogRows(
            project, branch, now=clock.now(), takes_passwords=_takes_passwords(branch)
        )
        passwords = rows.bring_to(found)
        # Branches still to be copied from this one will hold the same roles and databases, but
        # placeholders instead of passwords. A branch of a past moment and one that will keep
        # another branch's data after a restore get their rows together with their data.
        being_made = Operation.objects.filter(branch_id=OuterRef("id"), status__in=UNFINISHED)
        for child in Branch.objects.filter(
            Exists(being_made),
            Q(parent=branch) | Q(schema_of=branch),
            current_state=BranchState.INIT,
            parent_timestamp=None,
            parent_lsn=None,
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
