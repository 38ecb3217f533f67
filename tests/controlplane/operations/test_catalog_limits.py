"""What SQL makes in a branch beyond the limits of the account's plan. No compute runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.compute.catalog.reading import Found, FoundDatabase, FoundRole
from controlplane.models import Account, Branch, Database, Event, Host, Plan, Project, Role
from controlplane.operations.catalog import rows
from controlplane.operations.catalog.rows import CatalogRows, wanted
from tests.controlplane.rows import make_project

LIMIT = 100  # of the plan "standard"


@pytest.fixture
def branch(account: Account, host: Host) -> Branch:
    """A branch of the plan "standard" with a role and a database."""
    account.plan = Plan.STANDARD
    account.save()
    project: Project = make_project(account, host)
    found = Branch.objects.select_related("project__account").get(project=project)
    Role.objects.create(branch=found, name="heron", compute_oid=16384)
    Database.objects.create(
        branch=found, name="birds", owner_name="heron", applied_name="birds", compute_oid=16385
    )
    return found


HERON = FoundRole(16384, "heron", can_login=True, password=None, valid_until=None)
BIRDS = FoundDatabase(16385, "birds", "heron")


def bring(
    branch: Branch, roles: Sequence[int], databases: Sequence[int] = (), *, unread: int = 0
) -> None:
    """Bring the rows to a catalog in which SQL has made these roles and databases."""
    found = Found(
        "mark",
        [
            HERON,
            *(
                FoundRole(20_000 + n, f"r{n}", can_login=True, password=None, valid_until=None)
                for n in roles
            ),
        ],
        [BIRDS, *(FoundDatabase(90_000 + n, f"d{n}", "heron") for n in databases)],
        unread,
    )
    CatalogRows(branch.project, branch, now=clock.now()).bring_to(found)


def names(branch: Branch) -> set[str]:
    return set(branch.roles.values_list("name", flat=True))


def told() -> list[dict[str, object]]:
    return [event.changes for event in Event.objects.filter(type="catalog.limit_exceeded")]


def test_sql_makes_no_more_rows_than_the_plan_allows(branch: Branch) -> None:
    bring(branch, range(300), range(150), unread=5_700)
    assert (branch.roles.count(), branch.databases.count()) == (LIMIT, LIMIT)
    assert {"heron", "r0", "r98"} <= names(branch)
    assert Event.objects.filter(type="role.created").count() == LIMIT - 1
    left_out = {"roles": 5_700 + 300 - 99, "databases": 150 - 99}
    assert told() == [{name: {"from": None, "to": n} for name, n in left_out.items()}]
    # Owners are told once, and not with each further role.
    bring(branch, range(301), range(150), unread=5_700)
    assert len(told()) == 1


def test_what_was_left_out_is_imported_when_others_are_dropped(branch: Branch) -> None:
    bring(branch, range(300))
    bring(branch, range(250, 300))
    assert names(branch) == {"heron", *(f"r{n}" for n in range(250, 300))}
    assert Event.objects.filter(type="role.deleted").count() == LIMIT - 1


def test_many_roles_cost_few_queries(branch: Branch) -> None:
    with CaptureQueriesContext(
        connection,
    ) as few:
        bring(branch, range(2), range(2))
    bring(branch, ())
    with CaptureQueriesContext(connection) as many:
        bring(branch, range(99), range(99))
    recorded = 2 * (99 - 2)  # outside of the project's lock each event is a statement
    assert len(many) - recorded <= len(few)
    with CaptureQueriesContext(connection) as dropped:
        bring(branch, ())
    assert len(dropped) - 2 * 99 <= len(few)


def test_a_plan_without_limits_has_a_bound(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_IMPORTED", 20)
    branch.project.account.plan = Plan.UNLIMITED
    bring(branch, range(50), range(50))
    assert (branch.roles.count(), branch.databases.count()) == (20, 20)
    assert len(told()) == 1


def test_what_has_a_row_is_never_left_out(branch: Branch) -> None:
    """Neither by the reading nor by a smaller plan."""
    branch.project.account.plan = Plan.UNLIMITED
    bring(branch, range(300))
    branch.project.account.plan = Plan.STANDARD
    Role.objects.create(branch=branch, name="not_yet_made")
    roles, databases = wanted(branch.project, branch)
    assert len(roles.oids) == 301
    assert {"r299", "not_yet_made"} <= set(roles.names)
    assert (roles.others, databases.oids) == (LIMIT, [16385])
    bring(branch, range(300))
    assert branch.roles.count() == 302


@pytest.mark.parametrize("in_group", [False, True])
def test_a_row_of_the_api_does_not_become_a_role_that_sql_has_made(
    branch: Branch, in_group: bool
) -> None:
    row = Role.objects.create(branch=branch, name="app")
    there = FoundRole(20_000, "app", can_login=True, password=None, valid_until=None)
    found = Found("mark", [HERON, replace(there, in_group=in_group)], [BIRDS])
    CatalogRows(branch.project, branch, now=clock.now()).bring_to(found)
    row.refresh_from_db()
    assert row.compute_oid == (20_000 if in_group else None)
    assert names(branch) == {"heron", "app"}
