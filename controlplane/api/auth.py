"""Bearer API keys (specification, section 5)."""

from django.http import HttpRequest
from ninja.security import HttpBearer

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.api.fair_shares import WAIT_FOR_SHARE, take_share, until_answered
from controlplane.models import Account, ApiKey
from controlplane.services import accounts


class AuthenticatedRequest(HttpRequest):
    """A request whose key was good; what every view of the API gets."""

    auth: Account


class ApiKeyAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Account | None:
        # The key's own share first: a flood of one key, good or bad, does not reach the database.
        take_share(request, f"key {ApiKey.digest_of(token)}", within=WAIT_FOR_SHARE)
        address = request.META.get("REMOTE_ADDR", "")
        key = accounts.authenticate(token, address=address)
        if key is None:
            accounts.note_refused(token, address=address)
            return None
        take_share(request, f"account {key.account_id}")
        caller = Actor(ActorType.USER, name=key.name, api_key_id=key.id, address=address)
        until_answered(request).enter_context(acting_as(caller))
        return key.account
