"""What a branch that is yet to be made takes over of its source's roles and databases, as these
were changed since it was asked for. The callers hold the project's lock."""

from controlplane.models import Branch, Database, InitSource, Role


def take_over_catalog(branch: Branch, source: Branch) -> None:
    """Give the branch the roles and databases that its source has by now, and it does not know:
    its data will hold them."""
    roles = list(source.roles.exclude(name__in=branch.roles.values("name")).order_by("id"))
    known = {name for row in branch.databases.all() for name in (row.name, row.applied_name)}
    databases = list(source.databases.exclude(name__in=known - {None}).order_by("id"))
    rows: list[Role | Database] = [*roles, *databases]
    for row in rows:
        row.pk, row.branch = None, branch
        if branch.init_source == InitSource.SCHEMA_ONLY:
            row.compute_oid = None  # made anew, and numbered otherwise
    if source.protected:
        # Whoever gets a copy of what is protected is to get no way to the original with it.
        for role in roles:
            role.verifier = role.encrypted_password = ""
            role.password_is_newer = True
    Role.objects.bulk_create(roles)
    Database.objects.bulk_create(databases)


def take_over_passwords(branch: Branch, source: Branch) -> None:
    """Have the branch's roles get in as the source's do by now, but for those that the API has
    given a password of their own."""
    if source.protected:
        return
    theirs = {role.name: role for role in source.roles.filter(deleted_at=None)}
    for role in branch.roles.filter(deleted_at=None, password_is_newer=False):
        if (same := theirs.get(role.name)) and not same.password_is_newer:
            role.verifier, role.encrypted_password = same.verifier, same.encrypted_password
            role.no_login, role.valid_until = same.no_login, same.valid_until
            role.save(update_fields=["verifier", "encrypted_password", "no_login", "valid_until"])
