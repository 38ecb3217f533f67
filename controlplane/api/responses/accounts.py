"""The response fields of accounts, for operators."""

from ninja import Schema

from controlplane.api.http.fields import Timestamp
from controlplane.api.responses.status import told
from controlplane.models import Account

TIME = "2026-01-31T12:00:00Z"


class AccountOut(Schema):
    id: int = told("The account's number", 7)
    name: str = told("The account's name", "acme")
    plan: str = told("The plan, which sets its limits", "standard")
    projects: int = told("The number of its projects", 3)
    created_at: Timestamp = told("When it was created", TIME)
    operator: bool = told("Whether it operates the service", False)
    disabled_at: Timestamp | None = told("Since when its keys and connections are refused", None)
    deleted_at: Timestamp | None = told("When it was deleted", None)
    recoverable_until: Timestamp | None = told("Until when it can be recovered", None)

    @staticmethod
    def resolve_projects(account: Account) -> int:
        return account.living

    @staticmethod
    def resolve_operator(account: Account) -> bool:
        return account.is_operator


class OneAccount(Schema):
    account: AccountOut


class Accounts(Schema):
    accounts: list[AccountOut]
