"""The response fields of API keys and their limits, and of accounts, for operators."""

from ninja import Schema
from pydantic import SerializerFunctionWrapHandler, model_serializer

from controlplane.api.http.fields import Timestamp
from controlplane.api.responses.status import told
from controlplane.models import Account


class KeyLimits(Schema):
    """What an API key is limited to. Limits that the key does not have are left out, because
    neonctl treats a `project_id` of null as a key that reaches nothing."""

    project_id: str | None = None
    read_only: bool
    expires_at: Timestamp | None = None

    @model_serializer(mode="wrap")
    # It has no return annotation: with one, the OpenAPI document would show the annotated type
    # instead of the model's fields.
    def without_absent(self, serialized: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        limits = KeyLimits.model_fields
        fields = serialized(self).items()
        return {name: value for name, value in fields if value is not None or name not in limits}


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
