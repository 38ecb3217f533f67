"""`/api_keys`: a bare list, and flat bodies, as this API has them."""

from typing import Any

from ninja import Schema

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.fields import Timestamp
from controlplane.api.requests.api_keys import CreateApiKey
from controlplane.api.responses.key_reach import KeyReach
from controlplane.api.routing import Router
from controlplane.models import ApiKey
from controlplane.services import accounts

router = Router(tags=["API keys"])


class Creator(Schema):
    id: str
    name: str
    image: str = ""


class ApiKeyOut(KeyReach):
    id: int
    name: str
    created_at: Timestamp
    created_by: Creator
    last_used_at: Timestamp | None
    last_used_from_addr: str

    @staticmethod
    def resolve_created_by(key: ApiKey) -> dict[str, str]:
        return {"id": str(key.account_id), "name": key.account.name}


class CreatedApiKey(KeyReach):
    id: int
    key: str
    name: str
    created_at: Timestamp
    created_by: str


class RevokedApiKey(ApiKeyOut):
    # Clients want a bare id here, and an object in the list.
    created_by: str  # type: ignore[assignment]
    revoked: bool = True

    @staticmethod
    def resolve_created_by(key: ApiKey) -> str:  # type: ignore[override]
        return str(key.account_id)


@router.get("/api_keys", response=list[ApiKeyOut], summary="List API keys")
def list_api_keys(request: AuthenticatedRequest) -> list[ApiKey]:
    """The account's keys that were not revoked, the newest first; never a key itself."""
    return accounts.list_keys(request.auth)


@router.post("/api_keys", response=CreatedApiKey, summary="Create an API key")
def create_api_key(request: AuthenticatedRequest, body: CreateApiKey) -> dict[str, Any]:
    """The answer is the only one that ever holds the key. A key that expires makes none that
    lives longer; one that is limited to a project, or read-only, makes none at all."""
    row, key = accounts.create_key(request.auth, body.spec(), by=request.api_key)
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
    """At once and for good; revoking it again is no error."""
    return accounts.revoke_key(request.auth, key_id)
