"""Creates a branch's data as another branch was at a past moment, with the roles, databases and
passwords of then."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from controlplane import clock
from controlplane.compute.catalog_reading import Found, placeholder_of, read_catalog
from controlplane.compute.history.chain import Follows, holding_history
from controlplane.compute.history.moments import Moment, NoSuchMoment, find_lsn, find_time
from controlplane.compute.history.recovering import create_from_history
from controlplane.compute.session import session
from controlplane.models import Branch, FormerPassword, Role
from controlplane.operations.catalog_rows import CatalogRows, wanted
from controlplane.operations.details import CreateBranchDetails
from controlplane.operations.history import copy_log
from controlplane.operations.locks import locked_project


def create_from_moment(branch: Branch, source: Branch, details: CreateBranchDetails) -> None:
    """Create the branch's data and bring its rows to the catalog of then. Does nothing if the data
    exists already. Raises NoSuchMoment and what `create_from_history` raises."""

    def find() -> Moment:
        copy_log(source.id)
        return find_moment(source.id, details)

    def take_catalog(sockets: Path) -> None:
        with session(sockets) as connection:
            found = read_catalog(connection, *wanted(source.project, source))
        _bring_rows_to(branch, source, found)

    create_from_history(
        branch.id,
        find,
        holding=lambda: holding_history(source.id),
        on_recovered=take_catalog,
    )


def find_moment(branch_id: str, details: CreateBranchDetails) -> Moment:
    """The moment that the details name. Raises NoSuchMoment."""
    if details.at_lsn is not None:
        return find_lsn(branch_id, details.at_lsn)
    if details.at_time is None:
        raise NoSuchMoment("no moment was named")
    return find_time(branch_id, datetime.fromisoformat(details.at_time))


def position_of(source: Branch, *, of: Branch) -> Follows | None:
    """Where in the branch's history the source is, if it has that branch's recovered past."""
    if source.is_recovered_past and source.parent_id == of.id:
        at, lsn = source.parent_timestamp, source.parent_lsn
        details = CreateBranchDetails(at_time=at.isoformat() if at else None, at_lsn=lsn)
        with suppress(NoSuchMoment):  # it may have become too old
            moment = find_moment(of.id, details)
            return Follows(moment.chain.number, moment.stop)
    return None


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
