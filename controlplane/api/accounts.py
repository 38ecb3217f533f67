"""`/api_keys`: the caller's keys; as in Neon's API, the list and the bodies have no wrapping
object. `/accounts`: all accounts of the service, for the accounts that operate it."""

from typing import Any

from ninja import Query, Schema

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.fields import Timestamp
from controlplane.api.http.routing import Router
from controlplane.api.requests.accounts import (
    CreateAccount,
    CreateApiKey,
    DeletionQuery,
    UpdateAccount,
)
from controlplane.api.responses.organizations import Accounts, KeyLimits, OneAccount
from controlplane.models import Account, ApiKey
from controlplane.services import account_management as management
from controlplane.services import accounts

api_keys = Router(tags=["API keys"])


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


@api_keys.get("/api_keys", response=list[ApiKeyOut], summary="List API keys")
def list_api_keys(request: AuthenticatedRequest) -> list[ApiKey]:
    """Lists the account's API keys that have not been revoked, newest first. The secret keys
    themselves are never returned."""
    return accounts.list_keys(request.auth)


@api_keys.post("/api_keys", response=CreatedApiKey, summary="Create an API key")
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


@api_keys.delete("/api_keys/{key_id}", response=RevokedApiKey, summary="Revoke an API key")
def revoke_api_key(request: AuthenticatedRequest, key_id: int) -> ApiKey:
    """Revokes the key immediately and permanently. Revoking it again is not an error."""
    return accounts.revoke_key(request.auth, key_id)


router = Router(tags=["accounts"])

ACCOUNT = "/accounts/{account_id}"


@router.get("/accounts", response=Accounts, summary="List all accounts")
def list_accounts(request: AuthenticatedRequest) -> dict[str, Any]:
    """Lists all accounts by name. Deleted ones are listed until their rows are removed."""
    with management.acting_for(request.auth):
        return {"accounts": management.list_accounts()}


@router.post("/accounts", response={201: OneAccount}, summary="Create an account")
def create_account(request: AuthenticatedRequest, body: CreateAccount) -> tuple[int, Any]:
    """Creates an account without a key."""
    with management.acting_for(request.auth):
        made = accounts.create_account(body.account.name, body.account.plan)
        return 201, _one(made.id)


@router.get(ACCOUNT, response=OneAccount, summary="Get an account")
def get_account(request: AuthenticatedRequest, account_id: int) -> dict[str, Account]:
    """Returns any account."""
    with management.acting_for(request.auth):
        return _one(account_id)


@router.patch(ACCOUNT, response=OneAccount, summary="Change an account")
def update_account(
    request: AuthenticatedRequest, account_id: int, body: UpdateAccount
) -> dict[str, Account]:
    """Moves the account to another plan, or disables or enables it. While it is disabled, its keys
    are refused with 403 and its clients by the proxy; its open connections end at once, and its
    endpoints are suspended."""
    with management.acting_for(request.auth):
        account = management.find_account(account_id=account_id)
        if body.account.plan is not None:
            management.set_plan(account, body.account.plan)
        if body.account.disabled is not None:
            (management.disable if body.account.disabled else management.enable)(account)
        return _one(account_id)


@router.delete(ACCOUNT, response=OneAccount, summary="Delete an account")
def delete_account(
    request: AuthenticatedRequest, account_id: int, query: Query[DeletionQuery]
) -> dict[str, Account]:
    """Deletes the account with all its projects. It can be recovered until `recoverable_until`. If
    a project cannot be deleted now, the response is 409, and the same request continues."""
    with management.acting_for(request.auth):
        management.delete(management.find_account(account_id=account_id), typed=query.name)
        return _one(account_id)


@router.post(f"{ACCOUNT}/recover", response=OneAccount, summary="Recover a deleted account")
def recover_account(request: AuthenticatedRequest, account_id: int) -> dict[str, Account]:
    """Undoes the deletion: the account, its keys and the projects that were deleted with it are as
    before."""
    with management.acting_for(request.auth):
        management.recover(management.find_account(account_id=account_id))
        return _one(account_id)


@router.get(f"{ACCOUNT}/api_keys", response=list[ApiKeyOut], summary="List its API keys")
def list_account_api_keys(request: AuthenticatedRequest, account_id: int) -> list[ApiKey]:
    """Returns the API keys of any account that are not revoked, as `GET /api_keys` does."""
    with management.acting_for(request.auth):
        return accounts.list_keys(management.find_account(account_id=account_id))


@router.post(f"{ACCOUNT}/api_keys", response=CreatedApiKey, summary="Create one of its API keys")
def create_account_api_key(
    request: AuthenticatedRequest, account_id: int, body: CreateApiKey
) -> dict[str, Any]:
    """Creates an API key of any account, as `POST /api_keys` does. It expires no later than the
    operator's own."""
    with management.acting_for(request.auth):
        account = management.find_account(account_id=account_id)
        return created(*accounts.create_key(account, body.spec(), by=request.api_key))


@router.delete(
    f"{ACCOUNT}/api_keys/{{key_id}}", response=RevokedApiKey, summary="Revoke one of its API keys"
)
def revoke_account_api_key(request: AuthenticatedRequest, account_id: int, key_id: int) -> ApiKey:
    """Revokes an API key of any account, as `DELETE /api_keys/{key_id}` does."""
    with management.acting_for(request.auth):
        return accounts.revoke_key(management.find_account(account_id=account_id), key_id)


def _one(account_id: int) -> dict[str, Account]:
    return {"account": management.find_account(account_id=account_id)}
