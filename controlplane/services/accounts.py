"""Accounts and their API keys: create, authenticate, list, revoke."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Q

from controlplane import clock
from controlplane.events.changes import api_key_created, api_key_revoked
from controlplane.events.recording import happened, record
from controlplane.events.refusals import Refusal, refusals
from controlplane.events.types import EventType
from controlplane.models import Account, ApiKey
from controlplane.models.account import Plan
from controlplane.models.reading import Reading
from controlplane.services.errors import Conflict, Forbidden, Invalid, NotFound, Unprocessable
from controlplane.services.projects import find_project
from controlplane.services.rules.plan_limits import check_api_keys

MAX_NAME_LENGTH = 64
# `last_used_at` is not written more often than this, because writing it with every request would
# cost more than the request.
LAST_USED_PRECISION = timedelta(minutes=1)
# If many concurrent requests find `last_used_at` old, one of them writes it and none waits for the
# row's lock.
NOTE_USE = """
UPDATE controlplane_apikey SET last_used_at = %(now)s, last_used_from_addr = %(address)s
WHERE id = (
    SELECT id FROM controlplane_apikey
    WHERE id = %(id)s AND (last_used_at IS NULL OR last_used_at < %(old)s)
    FOR NO KEY UPDATE SKIP LOCKED
)
"""


@dataclass(frozen=True, kw_only=True)
class KeySpec:
    """What a request asks of a new key. With the defaults the key may do all that the account may
    do."""

    name: str
    # The only project that the key gives access to; None for all of the account's.
    project_id: str | None = None
    read_only: bool = False
    expires_at: datetime | None = None


KEY = Reading(
    ApiKey,
    """
    WHERE t.digest = %(digest)s AND t.revoked_at IS NULL
        AND (t.expires_at IS NULL OR t.expires_at > %(now)s) AND account.deleted_at IS NULL
    """,
    joined=["account"],
)


def create_account(name: str, plan: str = Plan.FREE) -> Account:
    """Create an account. Raises Invalid for a bad name or plan, Conflict if the name is taken."""
    _check_name("account", name)
    check_plan(plan)
    with transaction.atomic():
        account, is_new = Account.objects.get_or_create(name=name, defaults={"plan": plan})
        if not is_new:
            raise Conflict(f'account already exists; name:"{name}", plan:"{account.plan}"')
        record(
            happened(
                EventType.ACCOUNT_CREATED,
                account_id=account.id,
                summary=f'The account "{name}" was created on the plan "{plan}".',
            )
        )
    return account


def authenticate(key: str, *, address: str) -> ApiKey | None:
    """Return the key's row, with its account; None if the key is unknown, revoked or expired, or
    its account is deleted.

    `address` is the caller's IP address, which is noted with the time of use. Raises Forbidden if
    the account is disabled.
    """
    now = clock.now()
    row = KEY.first(digest=ApiKey.digest_of(key), now=now)
    if row is None:
        return None
    if row.account.disabled_at is not None:
        raise Forbidden("this account is disabled; ask the operator of this service")
    if row.last_used_at is None or now - row.last_used_at > LAST_USED_PRECISION:
        _note_use(row, now, address)
    return row


def _note_use(row: ApiKey, now: datetime, address: str) -> None:
    old = now - LAST_USED_PRECISION
    with connection.cursor() as cursor:
        cursor.execute(NOTE_USE, {"id": row.id, "now": now, "old": old, "address": address})


def note_refused(key: str, *, address: str) -> None:
    """Note that a key was refused. The event is for the key's account; if the key is unknown, only
    for the operator."""
    known = ApiKey.objects.filter(digest=ApiKey.digest_of(key)).first()
    kind = EventType.API_KEY_REFUSED
    if known is None:
        refusals.note(Refusal(kind, address=address))
    else:
        refusals.note(
            Refusal(kind, known.account_id, known.name, address=address, api_key_id=known.id)
        )


def keys_in_force(key_ids: Collection[int]) -> set[int]:
    """Those of the keys that are neither revoked nor expired, and whose account is enabled."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=clock.now())
    keys = ApiKey.objects.filter(
        unexpired, id__in=key_ids, revoked_at=None, account__disabled_at=None
    )
    return set(keys.values_list("id", flat=True))


def list_keys(account: Account) -> list[ApiKey]:
    """The account's keys that are not revoked, newest first, including expired ones."""
    keys = ApiKey.objects.select_related("account").filter(account=account, revoked_at=None)
    return list(keys.order_by("-created_at", "-id"))


def create_key(account: Account, spec: KeySpec, *, by: ApiKey | None = None) -> tuple[ApiKey, str]:
    """Create a key. Returns its row, and the key itself, which is not stored. `by` is the caller's
    key; None for the operator.

    Raises Invalid, NotFound for a project that is not the account's, Unprocessable if expires_at
    has passed or the account has too many keys, Forbidden if the new key would be valid for longer
    than the caller's, TooManyAtOnce.
    """
    _check_name("key", spec.name)
    if spec.expires_at is not None and spec.expires_at <= clock.now():
        raise Unprocessable("expires_at must be in the future", fields=["expires_at"])
    ends = by.expires_at if by is not None else None
    if ends is not None and (spec.expires_at is None or spec.expires_at > ends):
        raise Forbidden(
            f"this API key expires at {ends:%Y-%m-%dT%H:%M:%SZ}, so it cannot create a key that "
            "expires later; send an expires_at that is not later",
            fields=["expires_at"],
        )
    if spec.project_id is not None:
        find_project(account, spec.project_id)
    with transaction.atomic():
        check_api_keys(account)
        row, key = ApiKey.issue(
            account,
            spec.name,
            project_id=spec.project_id,
            read_only=spec.read_only,
            expires_at=spec.expires_at,
        )
        record(api_key_created(row))
    return row, key


def revoke_key(account: Account, key_id: int) -> ApiKey:
    """Revoke the key; do nothing if it is revoked already. Raises NotFound."""
    with transaction.atomic():
        keys = ApiKey.objects.select_for_update().filter(account=account, id=key_id)
        row = keys.first()
        if row is None:
            raise NotFound("API key not found")
        if row.revoked_at is None:
            row.revoked_at = clock.now()
            row.save(update_fields=["revoked_at"])
            record(api_key_revoked(row))
    return row


def check_plan(plan: str) -> None:
    """Raises Invalid for an unknown plan."""
    if plan not in Plan.values:
        raise Invalid(
            f'unknown plan "{plan}"; use one of: {", ".join(Plan.values)}', fields=["plan"]
        )


def _check_name(whose: str, name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_LENGTH:
        raise Invalid(
            f"the {whose}'s name must have 1 to {MAX_NAME_LENGTH} characters, and not only spaces"
        )
