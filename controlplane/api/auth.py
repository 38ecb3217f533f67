"""Bearer API keys (specification, section 5)."""

from django.http import HttpRequest
from ninja.security import HttpBearer

from controlplane.models import Account
from controlplane.services import accounts


class AuthenticatedRequest(HttpRequest):
    """A request whose key was good; what every view of the API gets."""

    auth: Account


class ApiKeyAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Account | None:
        return accounts.authenticate(token, address=request.META.get("REMOTE_ADDR", ""))
