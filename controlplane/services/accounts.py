"""API keys: who is calling, and the keys an account has."""

from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.events.changes import api_key_created, api_key_revoked
from controlplane.events.recording import record
from controlplane.events.refusals import Refusal, refusals
from controlplane.events.types import EventType
from controlplane.models import Account, ApiKey
from controlplane.services.errors import Invalid, NotFound

# Writing "last used" with every request would cost more than the request.
LAST_USED_PRECISION = timedelta(minutes=1)


def authenticate(key: str, *, address: str) -> ApiKey | None:
    """The key's row, with its account; None where it is unknown or revoked."""
    row = (
        ApiKey.objects.select_related("account")
        .filter(digest=ApiKey.digest_of(key), revoked_at=None)
        .first()
    )
    if row is None:
        return None
    now = timezone.now()
    if row.last_used_at is None or now - row.last_used_at > LAST_USED_PRECISION:
        ApiKey.objects.filter(id=row.id).update(last_used_at=now, last_used_from_addr=address)
    return row


def note_refused(key: str, *, address: str) -> None:
    """Tell of a key that was refused: its account, where it was one; else the operator."""
    known = ApiKey.objects.filter(digest=ApiKey.digest_of(key)).first()
    kind = EventType.API_KEY_REFUSED
    if known is None:
        refusals.note(Refusal(kind, address=address))
    else:
        refusals.note(
            Refusal(kind, known.account_id, known.name, address=address, api_key_id=known.id)
        )


def keys_in_force(key_ids: Collection[int]) -> set[int]:
    """Those of the keys that a request would still be let in with."""
    keys = ApiKey.objects.filter(id__in=key_ids, revoked_at=None)
    return set(keys.values_list("id", flat=True))


def list_keys(account: Account) -> list[ApiKey]:
    """The keys that are in force, the newest first."""
    keys = ApiKey.objects.select_related("account").filter(account=account, revoked_at=None)
    return list(keys.order_by("-created_at", "-id"))


def create_key(account: Account, name: str) -> tuple[ApiKey, str]:
    """The new key's row, and the key itself, which is not kept."""
    if not name.strip():
        raise Invalid("key_name must not be empty")
    return issue_key(account, name)


def issue_key(account: Account, name: str) -> tuple[ApiKey, str]:
    """The same for an operator, whose word it is."""
    with transaction.atomic():
        row, key = ApiKey.issue(account, name)
        record(api_key_created(row))
    return row, key


def revoke_key(account: Account, key_id: int) -> ApiKey:
    """Raises NotFound; revoking twice is no error."""
    with transaction.atomic():
        keys = ApiKey.objects.select_for_update().filter(account=account, id=key_id)
        row = keys.first()
        if row is None:
            raise NotFound("API key not found")
        if row.revoked_at is None:
            row.revoked_at = timezone.now()
            row.save(update_fields=["revoked_at"])
            record(api_key_revoked(row))
    return row
