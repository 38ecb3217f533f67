"""Updates a branch's rows of roles and databases with what was found in its compute's catalog.
Called by `importing`, which holds the project's lock.

A row is matched by the oid that Postgres gave to its role or database. If both the API and SQL
changed a field, the API's change stays, because the compute will still get it.

What SQL creates gets rows up to the limits of the account's plan, or MAX_IMPORTED: the project's
lock is held meanwhile. A role without a row can log in only while the compute runs, and not through
the pooler. What was left out gets a row once others are gone.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import TextField, Value
from django.db.models.functions import Cast, Concat

from controlplane.compute.catalog.reading import (
    Found,
    FoundDatabase,
    FoundRole,
    Wanted,
    is_placeholder,
    is_verifier,
    placeholder_of,
)
from controlplane.events.catalog import (
    catalog_limit_exceeded,
    database_created,
    database_deleted,
    database_updated,
    password_set_by_sql,
    role_created,
    role_deleted,
    role_updated,
)
from controlplane.events.recording import differences, record
from controlplane.models import Branch, Database, Event, Project, Role
from controlplane.models.names import is_reserved_database, is_reserved_role

log = logging.getLogger(__name__)

# The most roles and the most databases of a branch that get rows, if the plan has no limit.
MAX_IMPORTED = 1_000
# The time between two events that say what got no rows.
TOLD_AGAIN = timedelta(days=1)

# A password that SQL has set: the role's oid, the password, and what replaces it in the compute.
Password = tuple[int, str, str | None]


@dataclass
class CatalogRows:
    """Updates the rows of one branch. Without `is_told` no events are recorded. Without
    `takes_passwords`, roles that have no row yet lose their passwords: in a copy of a protected
    branch they would give access to the original."""

    project: Project
    branch: Branch
    now: datetime
    is_told: bool = True
    takes_passwords: bool = True
    _passwords: list[Password] = field(default_factory=list)

    def bring_to(self, found: Found) -> list[Password]:
        """Update the rows; returns the passwords that the compute has to give up."""
        roles = found.unread_roles + self._bring_roles(
            [role for role in found.roles if not is_reserved_role(role.name)]
        )
        databases = found.unread_databases + self._bring_databases(
            [one for one in found.databases if not is_reserved_database(one.name)]
        )
        if roles or databases:
            self._tell_of_limit(roles, databases)
        return self._passwords

    def _tell_of_limit(self, roles: int, databases: int) -> None:
        event = catalog_limit_exceeded(self.project, self.branch, roles, databases)
        same = Event.objects.filter(project_id=event.project_id, type=event.type)
        if not same.filter(branch_id=event.branch_id, at__gt=self.now - TOLD_AGAIN).exists():
            self._record(event)

    # roles

    def _bring_roles(self, found: Sequence[FoundRole]) -> int:
        """Returns how many got no row."""
        rows = list(self.branch.roles.order_by("id"))
        living = [row for row in rows if row.deleted_at is None]
        doomed = _Doomed.of(rows)
        roles = [role for role in found if not doomed.has(role.oid, role.name)]
        matches = self._match_roles(living, {role.oid: role for role in roles})
        gone = [row for row in living if row not in matches and row.compute_oid is not None]
        Role.objects.filter(pk__in=[row.pk for row in gone]).delete()
        for row in gone:
            self._record(role_deleted(self.project, self.branch, row))
        renamed = {row.pk: role.name for row, role in matches.items() if row.name != role.name}
        _free_names(Role, renamed)
        for row, role in matches.items():
            self._bring_role(row, role)
        known = {role.oid for role in matches.values()}
        waiting = {row.name for row in living if row not in matches and row.compute_oid is None}
        new = [role for role in roles if role.oid not in known and role.name not in waiting]
        room = _room(self.project.account.limits.roles_of_branch, len(living) - len(gone))
        added = [self._new_role(role) for role in new[:room]]
        Role.objects.bulk_create(added)
        for row, role in zip(added, new, strict=False):
            self._record(role_created(self.project, self.branch, row))
            if fault := _fault_of(role):
                self._record(password_set_by_sql(self.project, self.branch, row, fault))
        return len(new) - len(added)

    def _match_roles(
        self, living: Sequence[Role], by_oid: Mapping[int, FoundRole]
    ) -> dict[Role, FoundRole]:
        """Return the found role of each row that has one."""
        by_name = {role.name: role for role in by_oid.values()}
        asked_for = {row.name for row in living if row.compute_oid is None}
        matches = {}
        for row in living:
            role = by_oid.get(row.compute_oid or 0)
            # If SQL gave the role the name of a role that the API has created meanwhile, the API's
            # row takes it over (below), if the API has made both.
            if role and (role.name == row.name or role.name not in asked_for):
                matches[row] = role
        taken = {role.oid for role in matches.values()}
        for row in living:
            role = by_name.get(row.name)
            if row in matches or role is None or role.oid in taken:
                continue
            # Whoever has made a role by SQL may act as it: the API's rights are not for that one.
            if not (row.made_by_sql or role.in_group):
                continue
            # A placeholder under another oid: the platform created the role when the data was
            # made anew.
            if row.compute_oid is None or is_placeholder(role.password):
                matches[row] = role
        return matches

    def _bring_role(self, row: Role, role: FoundRole) -> None:
        before, kept = _event_fields(row), _all_fields(row)
        was_seen = row.compute_oid is not None
        if row.name != role.name:
            owned = self.branch.databases.filter(deleted_at=None)
            owned.filter(owner_name=row.name).update(owner_name=role.name)
            owned.filter(applied_owner=row.name).update(applied_owner=role.name)
        row.compute_oid, row.name = role.oid, role.name
        has_password = False
        # Otherwise the compute has yet to get the API's change of the role or its password.
        if not row.password_is_newer:
            row.no_login, row.valid_until = not role.can_login, role.valid_until
            has_password = self._take_password(row, role, was_seen=was_seen)
        changes = differences(before, _event_fields(row))
        if changes or has_password:
            row.updated_at = self.now
        if _all_fields(row) != kept:
            row.save()
        if changes:
            self._record(role_updated(self.project, self.branch, str(before["name"]), changes))
        if has_password:
            self._record(password_set_by_sql(self.project, self.branch, row, _fault_of(role)))

    def _take_password(self, row: Role, role: FoundRole, *, was_seen: bool) -> bool:
        """Return whether SQL has set or removed the role's password. If so, update the row's
        verifier."""
        if is_placeholder(role.password):
            # In a copy, data and rows may be of different moments: make the placeholder match the
            # row's verifier.
            if role.password and role.password != placeholder_of(row.verifier):
                self._passwords.append((role.oid, role.password, placeholder_of(row.verifier)))
            return False
        verifier = role.password if role.password and is_verifier(role.password) else ""
        if role.password:
            self._passwords.append((role.oid, role.password, placeholder_of(verifier)))
        elif not was_seen:
            return False
        if row.verifier == verifier and not _fault_of(role):
            return False
        row.verifier, row.encrypted_password = verifier, ""
        if fault := _fault_of(role):
            log.warning(fault, extra={"branch": self.branch.id, "role": role.name})
        return True

    def _new_role(self, role: FoundRole) -> Role:
        row = Role(
            branch=self.branch,
            name=role.name,
            verifier="",
            no_login=not role.can_login,
            valid_until=role.valid_until,
            compute_oid=role.oid,
            made_by_sql=True,
            created_at=self.now,
            updated_at=self.now,
        )
        if self.takes_passwords:
            self._take_password(row, role, was_seen=False)
        else:
            row.password_is_newer = True
            self._passwords.append((role.oid, role.password or "", None))
        return row

    # databases

    def _bring_databases(self, found: Sequence[FoundDatabase]) -> int:
        """Returns how many got no row."""
        rows = list(self.branch.databases.order_by("id"))
        living = [row for row in rows if row.deleted_at is None]
        doomed = _Doomed.of(rows)
        there = [one for one in found if not doomed.has(one.oid, one.name)]
        matches = _match_databases(living, there)
        # Names of rows that the API has created or renamed and the compute does not have yet.
        asked_for = {row.name for row in living if row.name != row.applied_name}
        gone = [row for row in living if row not in matches and row.applied_name is not None]
        Database.objects.filter(pk__in=[row.pk for row in gone]).delete()
        for row in gone:
            self._record(database_deleted(self.project, self.branch, row))
        renamed = {
            row.pk: one.name
            for row, one in matches.items()
            if row.name == row.applied_name != one.name
        }
        _free_names(Database, renamed)
        for row, one in matches.items():
            if row.pk in renamed and one.name in asked_for:
                # Two rows cannot have one name. This row follows once the API's row has been
                # applied or is gone.
                Database.objects.filter(pk=row.pk).update(name=row.name)
            else:
                self._bring_database(row, one)
        known = {one.oid for one in matches.values()}
        new = [one for one in there if one.oid not in known and one.name not in asked_for]
        room = _room(self.project.account.limits.databases_of_branch, len(living) - len(gone))
        added = Database.objects.bulk_create(self._new_database(one) for one in new[:room])
        for row in added:
            self._record(database_created(self.project, self.branch, row))
        return len(new) - len(added)

    def _bring_database(self, row: Database, one: FoundDatabase) -> None:
        before, kept = {"name": row.name, "owner_name": row.owner_name}, _all_fields(row)
        if row.name == row.applied_name:
            row.name = one.name
        row.compute_oid, row.applied_name = one.oid, one.name
        is_applied = self.branch.applied_catalog_revision == self.branch.catalog_revision
        if row.owner_name == row.applied_owner or (row.applied_owner is None and is_applied):
            row.owner_name = one.owner
        row.applied_owner = one.owner
        changes = differences(before, {"name": row.name, "owner_name": row.owner_name})
        if changes:
            row.updated_at = self.now
        if _all_fields(row) != kept:
            row.save()
        if changes:
            self._record(database_updated(self.project, self.branch, before["name"], changes))

    def _new_database(self, one: FoundDatabase) -> Database:
        return Database(
            branch=self.branch,
            name=one.name,
            applied_name=one.name,
            owner_name=one.owner,
            applied_owner=one.owner,
            compute_oid=one.oid,
            created_at=self.now,
            updated_at=self.now,
        )

    def _record(self, event: Event) -> None:
        if self.is_told:
            record(event)


@dataclass(frozen=True)
class _Doomed:
    """What the API has deleted and the compute still has: oids, and names where the oid is not
    known."""

    oids: frozenset[int]
    names: frozenset[str]

    @classmethod
    def of(cls, rows: Sequence[Role] | Sequence[Database]) -> "_Doomed":
        gone = [row for row in rows if row.deleted_at is not None]
        unseen = [row for row in gone if row.compute_oid is None]
        living = {_name_there(row) for row in rows if row.deleted_at is None}
        return cls(
            frozenset(row.compute_oid for row in gone if row.compute_oid is not None),
            frozenset(_name_there(row) for row in unseen) - living,
        )

    def has(self, oid: int, name: str) -> bool:
        return oid in self.oids or name in self.names


def wanted(project: Project, branch: Branch) -> tuple[Wanted, Wanted]:
    """Which roles and which databases a reading must return for the branch's rows."""
    limits, rows = project.account.limits, (branch.roles.all(), branch.databases.all())
    return (
        _wanted(rows[0], _room(limits.roles_of_branch, 0)),
        _wanted(rows[1], _room(limits.databases_of_branch, 0)),
    )


def _wanted(rows: Iterable[Role | Database], others: int) -> Wanted:
    names = {name for row in rows for name in (row.name, _name_there(row))}
    return Wanted([row.compute_oid for row in rows if row.compute_oid], sorted(names), others)


def _room(limit: int | None, have: int) -> int:
    return max(0, (MAX_IMPORTED if limit is None else limit) - have)


def _name_there(row: Role | Database) -> str:
    """Return the name that the compute has for the row's role or database."""
    return (row.applied_name or row.name) if isinstance(row, Database) else row.name


def _match_databases(
    living: Sequence[Database], there: Sequence[FoundDatabase]
) -> dict[Database, FoundDatabase]:
    """Match each row with the database of its oid, otherwise of the name that the compute has for
    it. A database that was dropped and created again therefore keeps its row."""
    by_oid = {one.oid: one for one in there}
    by_name = {one.name: one for one in there}
    made = [row for row in living if row.applied_name is not None]
    matches = {row: by_oid[row.compute_oid] for row in made if row.compute_oid in by_oid}
    taken = {one.oid for one in matches.values()}
    for row in made:
        # The second name is for a database that the platform renamed before it crashed.
        for name in (row.applied_name, row.name):
            one = by_name.get(name or "")
            if row not in matches and one is not None and one.oid not in taken:
                matches[row] = one
                taken.add(one.oid)
    return matches


def _free_names(rows: type[Role] | type[Database], renamed: Mapping[int, str]) -> None:
    """Free the names of the rows that will get another one: two may have swapped theirs."""
    freed = Concat(Value("renamed "), Cast("pk", TextField()))
    rows._default_manager.filter(pk__in=renamed).update(name=freed)


def _all_fields(row: Role | Database) -> dict[str, Any]:
    """Return every field, to find out whether one changed: each write notifies the proxies."""
    return {one.attname: getattr(row, one.attname) for one in row._meta.concrete_fields}


def _event_fields(row: Role) -> dict[str, Any]:
    until = row.valid_until.isoformat() if row.valid_until else None
    return {"name": row.name, "no_login": row.no_login, "valid_until": until}


def _fault_of(role: FoundRole) -> str:
    """Return why a password that SQL has set lets nobody log in; "" if it does, or if there is
    none."""
    if not role.password or is_verifier(role.password):
        return ""
    return "its password is stored as MD5, which Perch does not accept: set one with scram-sha-256"
