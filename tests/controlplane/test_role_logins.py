"""Which password is valid: that of the row, or one that SQL has set in the compute since."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.compute.catalog_reading import placeholder_of
from controlplane.models.connecting import RouteRow
from controlplane.proxy.directory.role_logins import (
    RoleLogin,
    is_in_rows,
    is_older,
    is_reserved,
    verifier_by_compute,
    verifier_by_row,
)


def verifier(letter: str) -> str:
    key = letter * 43 + "="
    return f"SCRAM-SHA-256$4096:c2FsdA==${key}:{key}"


ROWS, SQLS = verifier("R"), verifier("S")
ROW = RouteRow(
    endpoint_id="ep-a",
    account_id=1,
    plan="free",
    disabled=False,
    pooler_enabled=False,
    branch_id="br-a",
    is_active=True,
    role_id=7,
    verifier=ROWS,
    no_login=False,
    valid_until=None,
    compute_oid=100,
    password_is_newer=False,
    sessions_end_at=None,
    doomed=[],
    protected=False,
    access="{}",
)
NOBODY = replace(ROW, role_id=None, verifier=None, no_login=None, compute_oid=None)
LOGIN = RoleLogin(oid=100, can_login=True, has_expired=False, password=placeholder_of(ROWS))

# The row, the compute's answer, which verifier is valid, and whether the rows are up to date.
CASES: dict[str, tuple[RouteRow, RoleLogin | None, str | None, bool]] = {
    "as the row says": (ROW, LOGIN, ROWS, True),
    "a password set by SQL": (ROW, replace(LOGIN, password=SQLS), SQLS, False),
    "a password removed by SQL": (ROW, replace(LOGIN, password=None), None, False),
    "a password kept by MD5": (ROW, replace(LOGIN, password="md5" + "0" * 32), None, False),
    "a login revoked by SQL": (ROW, replace(LOGIN, can_login=False), None, False),
    "a login given by SQL": (replace(ROW, no_login=True), LOGIN, ROWS, False),
    "a password that has run out": (ROW, replace(LOGIN, has_expired=True), None, True),
    "dropped by SQL": (ROW, None, None, False),
    "made by SQL": (NOBODY, replace(LOGIN, password=SQLS), SQLS, False),
    "nobody": (NOBODY, None, None, True),
    "a placeholder without a row": (NOBODY, LOGIN, None, False),
    "yet to be made": (replace(ROW, compute_oid=None), None, ROWS, True),
    "made before there were placeholders": (
        replace(ROW, compute_oid=None),
        replace(LOGIN, password=None),
        ROWS,
        False,
    ),
    "made again by SQL": (ROW, replace(LOGIN, oid=101, password=SQLS), SQLS, False),
    "reset by the API since": (
        replace(ROW, password_is_newer=True),
        replace(LOGIN, password=SQLS, has_expired=True),
        ROWS,
        True,
    ),
    "what is left of a deleted one": (
        replace(ROW, compute_oid=None, doomed=[100]),
        replace(LOGIN, password=SQLS),
        ROWS,
        True,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_which_password_is_valid(case: Any) -> None:
    row, login, held, known = case
    assert (verifier_by_compute(row, login), is_in_rows(row, login)) == (held, known)


def test_without_an_answer_of_the_compute_the_row_decides() -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert verifier_by_row(ROW) == ROWS
    for change in ({"no_login": True}, {"valid_until": past}, {"verifier": ""}):
        assert verifier_by_row(replace(ROW, **change)) is None


def test_another_placeholder_means_that_the_row_is_outdated() -> None:
    assert not is_older(ROW, LOGIN)
    assert is_older(ROW, replace(LOGIN, password=placeholder_of(SQLS)))
    assert not is_older(replace(ROW, password_is_newer=True), LOGIN)
    assert ROWS not in str(LOGIN.password)


@pytest.mark.parametrize("name", ["pg_x", "perch_platform", "pgbouncer", "é" * 32, "a\0b"])
def test_no_client_can_log_in_as(name: str) -> None:
    assert is_reserved(name)
