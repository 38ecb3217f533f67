"""The one organization of an account.

Clients of Neon's API expect that an account belongs to organizations, which own the projects and
some API keys. In Perch the account owns them, and has one organization, which represents it.
"""

from controlplane.models import Account
from controlplane.services.errors import NotFound


def check_organization(account: Account, org_id: str | None) -> None:
    """Raises NotFound if `org_id` is not None and not that of the account's organization."""
    if org_id not in (None, account.organization_id):
        raise NotFound("organization not found", fields=["org_id"])
