"""The events of a branch's roles and databases: one function for each kind of change.

`changes` contains the name of the role or database, because an event has no other field for it. No
event contains a password or a verifier.
"""

from controlplane.events.recording import Changes, made_with, of_branch
from controlplane.events.types import EventType
from controlplane.models import Branch, Database, Event, Project, Role


def catalog_limit_exceeded(project: Project, branch: Branch, roles: int, databases: int) -> Event:
    """So many roles and databases that SQL has made get no rows."""
    summary = (
        f"SQL has made more than the branch may have. Until others are dropped, {roles} roles can "
        f"neither wake the endpoint nor use its pooler, and {databases} databases are not listed"
    )
    left_out = made_with(roles=roles, databases=databases)
    return of_branch(EventType.CATALOG_LIMIT_EXCEEDED, project, branch, summary, changes=left_out)


def role_created(project: Project, branch: Branch, role: Role) -> Event:
    summary = f'The role "{role.name}" was created'
    made = made_with(name=role.name, no_login=role.no_login or None)
    return of_branch(EventType.ROLE_CREATED, project, branch, summary, changes=made)


def role_deleted(project: Project, branch: Branch, role: Role) -> Event:
    summary = f'The role "{role.name}" was deleted'
    return of_branch(EventType.ROLE_DELETED, project, branch, summary, changes=_gone(role.name))


def role_updated(project: Project, branch: Branch, name: str, changes: Changes) -> Event:
    """`name` is the role's name before the change."""
    summary = f'The role "{name}" was changed: {", ".join(changes)}'
    named = {**_same(name), **changes}
    return of_branch(EventType.ROLE_UPDATED, project, branch, summary, changes=named)


def password_set_by_sql(project: Project, branch: Branch, role: Role, fault: str) -> Event:
    """`fault` says why the password cannot be used to log in; "" if it can."""
    was_set = role.verifier or fault
    summary = f'The password of the role "{role.name}" was {"set" if was_set else "removed"} by SQL'
    if fault:
        summary += f"; {fault}"
    kind = EventType.ROLE_PASSWORD_RESET
    return of_branch(kind, project, branch, summary, changes=_same(role.name))


def password_reset(project: Project, branch: Branch, role: Role) -> Event:
    summary = f'The role "{role.name}" was given a new password'
    kind = EventType.ROLE_PASSWORD_RESET
    return of_branch(kind, project, branch, summary, changes=_same(role.name))


def password_revealed(project: Project, branch: Branch, role: Role) -> Event:
    summary = f'The password of the role "{role.name}" was read'
    kind = EventType.ROLE_PASSWORD_REVEALED
    return of_branch(kind, project, branch, summary, changes=_same(role.name))


def database_created(project: Project, branch: Branch, database: Database) -> Event:
    summary = f'The database "{database.name}" was created'
    made = made_with(name=database.name, owner_name=database.owner_name)
    return of_branch(EventType.DATABASE_CREATED, project, branch, summary, changes=made)


def database_updated(project: Project, branch: Branch, name: str, changes: Changes) -> Event:
    """`name` is the database's name before the change."""
    summary = f'The database "{name}" was changed: {", ".join(changes)}'
    named = {**_same(name), **changes}
    return of_branch(EventType.DATABASE_UPDATED, project, branch, summary, changes=named)


def database_deleted(project: Project, branch: Branch, database: Database) -> Event:
    summary = f'The database "{database.name}" was deleted'
    kind = EventType.DATABASE_DELETED
    return of_branch(kind, project, branch, summary, changes=_gone(database.name))


def _same(name: str) -> Changes:
    return {"name": {"from": name, "to": name}}


def _gone(name: str) -> Changes:
    return {"name": {"from": name, "to": None}}
