"""What operations use of the history of branches: they make branches of past moments, read such
moments, and go on with the history of a branch whose data they make, replace or take back."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from django.db.models import F

from controlplane import clock, durable
from controlplane.compute.catalog.reading import Found, placeholder_of, read_catalog
from controlplane.compute.compute import OtherMajorVersion
from controlplane.compute.data.branch_data import staging_id
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.processes.session import session
from controlplane.history import keeping
from controlplane.history.keeping import copy_log, publish
from controlplane.history.local import chain
from controlplane.history.local.bases import begin_with_template
from controlplane.history.local.chain import Follows, chains_of, holding_history
from controlplane.history.local.moments import Moment, NoSuchMoment, find_lsn, find_time
from controlplane.history.local.recovering import create_from_history, serving_moment
from controlplane.models import (
    Branch,
    FormerPassword,
    Operation,
    Project,
    Role,
    SchemaFormat,
    SchemaReading,
)
from controlplane.models.history import REPLACED
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.words import failure_message
from controlplane.operations.catalog.rows import CatalogRows, wanted
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.locks import locked_project

HandOver = Callable[[Path, Path], None]


def make_from_moment(branch: Branch, source: Branch, details: CreateBranchDetails) -> None:
    """Create the branch's data and bring its rows to the catalog of then. Creates nothing if the
    data exists already. Raises StartRefused and what `create_from_history` raises."""

    def find() -> Moment:
        copy_log(source.id)
        at = datetime.fromisoformat(details.at_time) if details.at_time else None
        return _find_moment(source.id, at, details.at_lsn)

    def take_catalog(sockets: Path) -> None:
        with session(sockets) as connection:
            found = read_catalog(connection, *wanted(source.project, source))
        _bring_rows_to(branch, source, found)

    try:
        create_from_history(
            branch.id,
            find,
            holding=lambda: holding_history(source.id),
            on_recovered=take_catalog,
        )
    except (NoSuchMoment, NotEnoughSpace, OtherMajorVersion) as error:
        raise StartRefused(failure_message(error)) from error
    # The rows were read from the recovered catalog. The compute has yet to get other passwords, if
    # the roles have any.
    others = source.protected or branch.is_time_travel
    revision = 0 if others else F("catalog_revision")
    Branch.objects.filter(id=branch.id).update(applied_catalog_revision=revision, logical_size=None)


def read_past(reading: SchemaReading, ask: Callable[[str, str], str]) -> str:
    """Answer a reading of a past moment. A schema is read by `ask`, with the name that a recovered
    copy of the branch runs for, and the name of its directory. Raises NoSuchMoment, and what
    `serving_moment` and `ask` raise."""
    branch_id = reading.branch_id

    def find() -> Moment:
        copy_log(branch_id)
        return _find_moment(branch_id, reading.at_time, reading.at_lsn)

    if reading.format == SchemaFormat.MOMENT:
        with holding_history(branch_id):
            moment = find()
            # The commits that were copied for this are listed in the history from now on.
            publish(branch_id, chains_of(branch_id))
        return json.dumps(moment.as_json())
    # No branch has this id.
    scratch = f"br-{reading.id.hex[:16]}"
    with serving_moment(scratch, find, holding=lambda: holding_history(branch_id)) as sockets:
        return ask(sockets.name, staging_id(scratch))


def _find_moment(branch_id: str, at: datetime | None, lsn: int | None) -> Moment:
    """The branch's moment of which one of the two is known. Raises NoSuchMoment."""
    if lsn is not None:
        return find_lsn(branch_id, lsn)
    if at is None:
        raise NoSuchMoment("no moment was named")
    return find_time(branch_id, at)


def _position_of(source: Branch, *, of: Branch) -> Follows | None:
    """Where in the branch's history the source is, if it has that branch's recovered past."""
    if source.is_recovered_past and source.parent_id == of.id:
        with suppress(NoSuchMoment):  # it may have become too old
            moment = _find_moment(of.id, source.parent_timestamp, source.parent_lsn)
            return Follows(moment.chain.number, moment.stop)
    return None


def from_template(project: Project) -> HandOver | None:
    """What begins the history of a branch whose data is made from the template; None for none."""
    return begin_with_template if project.history_retention_seconds else None


def note_history(*branch_ids: str) -> None:
    """Make the rows about the branches' history equal to what their directories have."""
    for branch_id in branch_ids:
        publish(branch_id, chains_of(branch_id))


def begins_with_copy(operation: Operation, branch: Branch) -> Callable[[int | None], None]:
    """What takes the first base of a branch's history from the copy that its data will be, before
    the copy has its place: both are flushed together."""

    def take_base(end: int | None) -> None:
        if not branch.hidden:
            with durable.flushing_later():
                keeping.take_first_base(operation, branch, place=staging_id(branch.id), end=end)

    return take_base


def begin_history(operation: Operation, branch: Branch) -> None:
    """Begin the history of a branch that the operation has made. The caller holds its lock."""
    with holding_history(branch.id):
        keeping.begin_history(operation, branch)


@contextmanager
def replacing_data(
    operation: Operation, branch: Branch, source: Branch | None = None
) -> Iterator[HandOver]:
    """Hold the history of a branch while the operation gives it the data of `source`, or its own
    as data of another major version. Yields what to call with the directories of the old and the
    fresh data before the fresh takes the place of the old. At the end the history goes on with a
    base of the fresh data. The caller holds the branch's lock, and its compute does not run. Raises
    LockTimeout, and what `history.copy_log` raises."""

    def hand_over(old: Path, fresh: Path) -> None:
        copy_log(branch.id)
        reason = REPLACED if source else chain.UPGRADED
        chain.hand_over(old, fresh, clock.now(), reason)

    with holding_history(branch.id):
        follows = _position_of(source, of=branch) if source else None
        yield hand_over
        keeping.begin_history(operation, branch, follows)


def _bring_rows_to(branch: Branch, source: Branch, found: Found) -> None:
    """Give the branch the rows of the roles and databases that it had then.

    The catalog holds no passwords, only placeholders that identify them. A password of then is
    that of the source's row, if it was not changed since, or a former one. Without either the role
    has no password until somebody sets one. Passwords of a protected source must not work for a
    branch that clients can reach: its roles have those that its creation gave them. So have those
    of a branch to read the past, whose clients know the present passwords.
    """
    gives_others = branch.is_time_travel or (source.protected and not branch.hidden)
    with locked_project(branch.project_id) as project:
        rows = {role.compute_oid: role for role in source.roles.all()}
        former = {
            placeholder_of(one.verifier): one
            for one in FormerPassword.objects.filter(branch_id=source.id)
        }
        given = {role.name: role for role in branch.roles.filter(deleted_at=None)}
        branch.roles.all().delete()
        branch.databases.all().delete()
        CatalogRows(
            project, branch, now=clock.now(), is_told=False, takes_passwords=False
        ).bring_to(found)
        by_oid = {role.oid: role for role in found.roles}
        for role in branch.roles.all():
            before = rows.get(role.compute_oid)
            placeholder = by_oid[role.compute_oid].password if role.compute_oid else None
            known: Role | FormerPassword | None = former.get(placeholder)
            if before is not None:
                role.protected, role.made_by_sql = before.protected, before.made_by_sql
                role.created_at = before.created_at
                if placeholder_of(before.verifier) == placeholder:
                    known = before
            if gives_others:
                known = given.get(role.name)
            if known is not None and (gives_others or placeholder is not None):
                role.verifier, role.encrypted_password = known.verifier, known.encrypted_password
            role.password_is_newer = gives_others
            role.save()
        Branch.objects.filter(id=branch.id).update(catalog_mark=found.mark)
