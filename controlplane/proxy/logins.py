"""Whether a role may log in, and by which verifier: what its row says, and what SQL has done since
in a compute that runs. A pure rule; `logins_in_computes` asks the computes."""

from dataclasses import dataclass

from controlplane import clock
from controlplane.compute.catalog_reading import is_placeholder, is_verifier, placeholder_of
from controlplane.models.connecting import RouteRow
from controlplane.models.reserved_names import is_reserved_role


@dataclass(frozen=True, slots=True)
class RoleLogin:
    """A role as its compute's catalog has it."""

    oid: int
    can_login: bool
    has_expired: bool
    # A verifier or whatever else SQL has set, or a placeholder; None for none.
    password: str | None


def verifier_by_row(row: RouteRow) -> str | None:
    """None where the role may not log in, as far as the rows know."""
    has_expired = row.valid_until is not None and row.valid_until <= clock.now()
    return None if row.no_login or has_expired else row.verifier or None


def verifier_by_compute(row: RouteRow, login: RoleLogin | None) -> str | None:
    """None where the role may not log in; `login` is None where the compute has no such role."""
    if login is None or login.oid in row.doomed:
        # Dropped by SQL; else it is yet to be made there, and the compute will speak for itself.
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
    """Whether the rows know all that the compute says of the role."""
    if login is None:
        return row.compute_oid is None
    # A password of the API's, or what it deleted, an operation is about to bring there.
    if row.password_is_newer or login.oid in row.doomed:
        return True
    return (
        row.compute_oid == login.oid
        and login.can_login is not row.no_login
        and login.password == placeholder_of(row.verifier or "")
    )


def is_older(row: RouteRow, login: RoleLogin | None) -> bool:
    """Whether the row was read before it got the password that the compute has given up."""
    return (
        login is not None
        and is_placeholder(login.password)
        and login.password != placeholder_of(row.verifier or "")
        and not row.password_is_newer
    )


def is_reserved(role: str) -> bool:
    """Whether no client can be this role, whatever a compute says of it."""
    return is_reserved_role(role) or len(role.encode()) > 63 or "\0" in role
