"""`/api_keys`. As in Neon's API, the list and the bodies have no wrapping object."""

from typing import Any

from ninja import Schema

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.fields import Timestamp
from controlplane.api.http.routing import Router
from controlplane.api.requests.api_keys import CreateApiKey
from controlplane.api.responses.key_limits import KeyLimits
from controlplane.models import ApiKey
from controlplane.services import accounts

router = Router(tags=["API keys"])


class Creator(Schema):
    id: str
    name: str
    image: str = ""


class ApiKeyOut(KeyLimits):
    id: int
    name: str
    created_at: Timestamp
    created_by: Creator
    last_used_at: Timestamp | None
    last_used_from_addr: str

    @staticmethod
    def resolve_created_by(key: ApiKey) -> dict[str, str]:
        return {"id": str(key.account_id), "name": key.account.name}


class CreatedApiKey(KeyLimits):
    id: int
    key: str
    name: str
    created_at: Timestamp
    created_by: str


class RevokedApiKey(ApiKeyOut):
    # Clients require an id here, although the list has an object.
    created_by: str  # type: ignore[assignment]
    revoked: bool = True

    @staticmethod
    def resolve_created_by(key: ApiKey) -> str:  # type: ignore[override]
        return str(key.account_id)


@router.get("/api_keys", response=list[ApiKeyOut], summary="List API keys")
def list_api_keys(request: AuthenticatedRequest) -> list[ApiKey]:
    """Lists the account's API keys that have not been revoked, newest first. The secret keys
    themselves are never returned."""
    return accounts.list_keys(request.auth)


@router.post("/api_keys", response=CreatedApiKey, summary="Create an API key")
def create_api_key(request: AuthenticatedRequest, body: CreateApiKey) -> dict[str, Any]:
    """Creates an API key. Only this response ever contains the key itself. A key that expires
    cannot create a key that expires later or never. A key that is read-only or limited to a
    project cannot create keys."""
    return created(*accounts.create_key(request.auth, body.spec(), by=request.api_key))


def created(row: ApiKey, key: str) -> dict[str, Any]:
    """The response for a new key."""
    return {
        "id": row.id,
        "key": key,
        "name": row.name,
        "created_at": row.created_at,
        "created_by": str(row.account_id),
        "project_id": row.project_id,
        "read_only": row.read_only,
        "expires_at": row.expires_at,
    }


@router.delete("/api_keys/{key_id}", response=RevokedApiKey, summary="Revoke an API key")
def revoke_api_key(request: AuthenticatedRequest, key_id: int) -> ApiKey:
    """Revokes the key immediately and permanently. Revoking it again is not an error."""
    return accounts.revoke_key(request.auth, key_id)
