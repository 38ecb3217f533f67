"""Decides whether a role may log in, and by which verifier: from its row, and from what SQL has
changed since in a running compute. Pure functions; `compute_logins` asks the computes."""

from dataclasses import dataclass

from controlplane import clock
from controlplane.compute.catalog.reading import is_placeholder, is_verifier, placeholder_of
from controlplane.models.connecting import RouteRow
from controlplane.models.names import is_reserved_role


@dataclass(frozen=True, slots=True)
class RoleLogin:
    """A role in its compute's catalog."""

    oid: int
    can_login: bool
    has_expired: bool
    # A verifier, any other text that SQL has set, or a placeholder; None for no password.
    password: str | None


def verifier_by_row(row: RouteRow) -> str | None:
    """Returns None if the role may not log in, as far as the rows say."""
    has_expired = row.valid_until is not None and row.valid_until <= clock.now()
    return None if row.no_login or has_expired else row.verifier or None


def verifier_by_compute(row: RouteRow, login: RoleLogin | None) -> str | None:
    """Returns None if the role may not log in. `login` is None if the compute has no such role."""
    if login is None or login.oid in row.doomed:
        # If the row has an OID, SQL has dropped the role. Otherwise the role is yet to be created
        # in the compute, which will then decide.
        return verifier_by_row(row) if row.compute_oid is None else None
    if not login.can_login:
        return None
    if row.password_is_newer:
        return row.verifier or None
    if login.has_expired:
        return None
    if is_placeholder(login.password) or (login.password is None and row.compute_oid is None):
        return row.verifier or None
    return login.password if login.password and is_verifier(login.password) else None


def is_in_rows(row: RouteRow, login: RoleLogin | None) -> bool:
    """True if the rows agree with what the compute says of the role."""
    if login is None:
        return row.compute_oid is None
    # An operation is about to apply the API's password, or the role's deletion, to the compute.
    if row.password_is_newer or login.oid in row.doomed:
        return True
    return (
        row.compute_oid == login.oid
        and login.can_login is not row.no_login
        and login.password == placeholder_of(row.verifier or "")
    )


def is_older(row: RouteRow, login: RoleLogin | None) -> bool:
    """True if the row was read before it got the password that a placeholder stands for now."""
    return (
        login is not None
        and is_placeholder(login.password)
        and login.password != placeholder_of(row.verifier or "")
        and not row.password_is_newer
    )


def is_reserved(role: str) -> bool:
    """True if no client can have this role, whatever a compute says of it."""
    return is_reserved_role(role) or len(role.encode()) > 63 or "\0" in role
