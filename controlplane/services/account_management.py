"""What operators do with the accounts of others: list, change, disable, delete and recover them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet

from controlplane import clock
from controlplane.actors import Actor, ActorType, acting_as, current_actor
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import Account, Endpoint, EndpointState, Project
from controlplane.operations.engine.scheduling import TooManyUnfinished
from controlplane.services.accounts import check_plan
from controlplane.services.endpoints import suspend_endpoint
from controlplane.services.errors import Conflict, Forbidden, NotFound, ServiceError, Unprocessable
from controlplane.services.project_changes import recover_project
from controlplane.services.projects import delete_project


class Unfinished(Conflict):
    """Some projects could not be deleted or recovered; the same call again continues."""


def check_operator(account: Account) -> None:
    """Raise Forbidden if the account is not an operator of the service."""
    if not account.is_operator:
        raise Forbidden(
            "only the accounts named in PERCH_OPERATORS may see the hosts of this service"
        )


@contextmanager
def acting_for(operator: Account) -> Iterator[None]:
    """Act as an operator in this block, at a request with the operator's key. The events are those
    of another account, which may see that an operator acted, but neither the key nor the address.

    Raises Forbidden if the account is no operator.
    """
    if not operator.is_operator:
        raise Forbidden("only the accounts named in PERCH_OPERATORS may manage other accounts")
    by = current_actor()
    name = f"{by.name}, of the operator {operator.name}"
    with acting_as(Actor(ActorType.USER, name=name)):
        yield


def list_accounts() -> list[Account]:
    """All accounts by name, the deleted ones too, with the number of their `living` projects."""
    return list(_counted().order_by("name"))


def find_account(*, name: str = "", account_id: int | None = None) -> Account:
    """The account, with the number of its `living` projects. Raises NotFound."""
    chosen = Q(name=name) if account_id is None else Q(id=account_id)
    account = _counted().filter(chosen).first()
    if account is None:
        raise NotFound("account not found")
    return account


def set_plan(account: Account, plan: str) -> None:
    """Raises Invalid for an unknown plan, NotFound."""
    check_plan(plan)
    with _locked(account) as row:
        if row.plan != plan:
            _change(
                row,
                EventType.ACCOUNT_UPDATED,
                f'The plan of the account was changed from "{row.plan}" to "{plan}".',
                plan=plan,
            )


def disable(account: Account) -> None:
    """Refuse the account's keys and connections from now on, end its connections, and suspend its
    endpoints. Raises Conflict for an operator's account, NotFound."""
    refuse_operator(account)
    with _locked(account) as row:
        if row.disabled_at is not None:
            return
        _change(
            row, EventType.ACCOUNT_DISABLED, "The account was disabled.", disabled_at=clock.now()
        )
    running = Endpoint.objects.filter(
        project__account=account, deleted_at=None, project__deleted_at=None
    ).exclude(current_state=EndpointState.IDLE)
    for project_id, endpoint_id in running.values_list("project_id", "id"):
        # Its connections have ended. If it cannot be suspended now, it is when it has been idle.
        _refusal_of(lambda: suspend_endpoint(account, project_id, endpoint_id))  # noqa: B023


def enable(account: Account) -> None:
    """Accept the account's keys and connections again. Raises Conflict if it is deleted,
    NotFound."""
    with _locked(account) as row:
        if row.deleted_at is not None:
            raise Conflict("the account is deleted; recover it instead")
        if row.disabled_at is not None:
            _change(
                row, EventType.ACCOUNT_ENABLED, "The account was enabled again.", disabled_at=None
            )


def delete(account: Account, *, typed: str) -> None:
    """Delete the account with all its projects. `typed` is its name, as a confirmation. For
    RECOVERY_HOURS it can be recovered; its rows are removed with those of its projects.

    Raises Unprocessable for another name, Conflict for an operator's account, NotFound, Unfinished.
    """
    refuse_operator(account)
    if typed != account.name:
        raise Unprocessable("the name is not that of the account", fields=["name"])
    with _locked(account) as row:
        if row.deleted_at is None:
            now = clock.now()
            hours = settings.RECOVERY_HOURS
            _change(
                row,
                EventType.ACCOUNT_DELETED,
                "The account was deleted, with all its projects.",
                deleted_at=now,
                # If it is the same moment, the recovery enables the account again.
                disabled_at=row.disabled_at or now,
                recoverable_until=now + timedelta(hours=hours) if hours > 0 else None,
            )
    living = Project.objects.filter(account=account, deleted_at=None).order_by("id")
    _for_each(living, lambda project_id: delete_project(account, project_id, even_protected=True))


def recover(account: Account) -> None:
    """Undo the deletion: the account, its keys and the projects that were deleted with it are as
    before. Raises Conflict if it is not deleted or it is too late, NotFound, Unfinished."""
    with _locked(account) as row:
        if row.deleted_at is None:
            raise Conflict("the account is not deleted")
        if row.recoverable_until is None or row.recoverable_until <= clock.now():
            raise Conflict("the account cannot be recovered any more: its data is removed")
    since = row.deleted_at
    with_it = Project.objects.filter(
        account=account, deleted_at__gte=since, recoverable_until__gt=clock.now()
    ).order_by("id")
    _for_each(with_it, lambda project_id: recover_project(account, project_id))
    with _locked(account) as row:
        _change(
            row,
            EventType.ACCOUNT_RECOVERED,
            "The account was recovered, with its projects.",
            disabled_at=None if row.disabled_at == since else row.disabled_at,
            deleted_at=None,
            recoverable_until=None,
        )


def _counted() -> QuerySet[Account]:
    living = Q(projects__deleted_at=None)
    return Account.objects.annotate(living=Count("projects", filter=living))  # type: ignore[no-redef]


@contextmanager
def _locked(account: Account) -> Iterator[Account]:
    """A transaction that holds the account's row. Raises NotFound."""
    with transaction.atomic():
        row = Account.objects.select_for_update(no_key=True).filter(id=account.id).first()
        if row is None:
            raise NotFound("account not found")
        yield row


def refuse_operator(account: Account) -> None:
    if account.is_operator:
        raise Conflict(
            f'the account "{account.name}" operates this service: remove it from PERCH_OPERATORS '
            "first"
        )


def _change(row: Account, kind: EventType, summary: str, **values: object) -> None:
    changes = {
        name: {"from": _table_text(getattr(row, name)), "to": _table_text(value)}
        for name, value in values.items()
    }
    Account.objects.filter(id=row.id).update(**values)
    record(happened(kind, account_id=row.id, summary=summary, changes=changes))


def _table_text(value: object) -> object:
    return value if isinstance(value, str | None) else value.isoformat(timespec="seconds")  # type: ignore[attr-defined]


def _for_each(projects: QuerySet[Project], do: Callable[[str], object]) -> None:
    """Raises Unfinished at the end if a project was refused."""
    refused = []
    for project_id in list(projects.values_list("id", flat=True)):
        error = _refusal_of(lambda: do(project_id))  # noqa: B023
        if error:
            refused.append(f"{project_id}: {error}")
    if refused:
        raise Unfinished(f"try again; not all projects are done: {'; '.join(refused[:5])}")


def _refusal_of(do: Callable[[], object]) -> str:
    """Do it. Returns why it was refused; "" if it was not."""
    try:
        do()
    except (ServiceError, TooManyUnfinished) as error:
        return str(error)
    return ""
