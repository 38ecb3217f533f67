"""`/api_keys`: a bare list, and flat bodies, as this API has them."""

from typing import Any

from ninja import Router, Schema

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.fields import Timestamp
from controlplane.api.requests import CreateApiKey
from controlplane.models import ApiKey
from controlplane.services import accounts

router = Router(tags=["API keys"])


class Creator(Schema):
    id: str
    name: str
    image: str = ""


class ApiKeyOut(Schema):
    id: int
    name: str
    created_at: Timestamp
    created_by: Creator
    last_used_at: Timestamp | None
    last_used_from_addr: str

    @staticmethod
    def resolve_created_by(key: ApiKey) -> dict[str, str]:
        return {"id": str(key.account_id), "name": key.account.name}


class CreatedApiKey(Schema):
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


@router.get("/api_keys", response=list[ApiKeyOut])
def list_api_keys(request: AuthenticatedRequest) -> list[ApiKey]:
    return accounts.list_keys(request.auth)


@router.post("/api_keys", response=CreatedApiKey)
def create_api_key(request: AuthenticatedRequest, body: CreateApiKey) -> dict[str, Any]:
    row, key = accounts.create_key(request.auth, body.key_name)
    return {
        "id": row.id,
        "key": key,
        "name": row.name,
        "created_at": row.created_at,
        "created_by": str(row.account_id),
    }


@router.delete("/api_keys/{key_id}", response=RevokedApiKey)
def revoke_api_key(request: AuthenticatedRequest, key_id: int) -> ApiKey:
    return accounts.revoke_key(request.auth, key_id)
