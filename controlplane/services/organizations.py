"""The one organization of an account.

Clients of this API know accounts that belong to several organizations, which own the projects and
some API keys. Here the account owns them, so its one organization is the account by another name.
"""

from controlplane.models import Account
from controlplane.services.errors import NotFound


def check_organization(account: Account, org_id: str | None) -> None:
    """Raises NotFound where another than the account's own is named."""
    if org_id not in (None, account.organization_id):
        raise NotFound("organization not found")
