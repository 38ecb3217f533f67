"""Bearer API keys (specification, section 5)."""

from django.http import HttpRequest
from ninja.security import HttpBearer

from controlplane.api.fair_shares import WAIT_FOR_SHARE, take_share
from controlplane.models import Account, ApiKey
from controlplane.services import accounts


class AuthenticatedRequest(HttpRequest):
    """A request whose key was good; what every view of the API gets."""

    auth: Account


class ApiKeyAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Account | None:
        # The key's own share first: a flood of one key, good or bad, does not reach the database.
        take_share(request, f"key {ApiKey.digest_of(token)}", within=WAIT_FOR_SHARE)
        account = accounts.authenticate(token, address=request.META.get("REMOTE_ADDR", ""))
        if account is not None:
            take_share(request, f"account {account.id}")
        return account
