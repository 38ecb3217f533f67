"""Query parameters: of lists (a limit and the cursor of the previous page), of a request that waits
for an operation, and of connection strings."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from ninja import Field, Schema
from pydantic import BeforeValidator

from controlplane.actors import ActorType
from controlplane.api.http.fields import UUID, Stated, Text, ids_like, one_of
from controlplane.api.http.not_offered import NO_RECOVERY, NotOffered
from controlplane.models import Action, OperationStatus
from controlplane.models.operation_pages import OperationFilter
from controlplane.services.branch_pages import MAX_LIMIT, BranchFilters, SortBy, SortOrder
from controlplane.services.operations import MAX_IDS, filter_of

Row = TypeVar("Row")

ORG_ID_DESCRIPTION = "The caller's organization; any other is answered 404."


def _lowercase(value: Any) -> Any:
    """Also accept an order in capitals, which is how responses write it."""
    return value.lower() if isinstance(value, str) else value


def _flag(value: Any) -> Any:
    """A flag of a query, before it is parsed."""
    return {"true": True, "false": False}.get(str(value).lower(), value)


def page_of(name: str, rows: Sequence[Row], cursor: Callable[[Row], str]) -> dict[str, Any]:
    """The response with a page of a list. It has the cursor of its last row, if it has rows."""
    page: dict[str, Any] = {name: rows}
    if rows:
        page["pagination"] = {"cursor": cursor(rows[-1])}
    return page


class PageQuery(Schema):
    cursor: Text | None = Field(None, description="The cursor of the previous page.")
    limit: int = Field(100, ge=1, le=MAX_LIMIT, description="The maximum number of items.")


class MembersQuery(PageQuery):
    sort_by: Literal["email", "role", "joined_at"] = Field("joined_at", description="The order.")
    sort_order: Annotated[SortOrder, BeforeValidator(_lowercase)] = Field(
        "asc", description="Its direction."
    )


class SharedProjectsQuery(Schema):
    cursor: Text | None = Field(None, description="The cursor of the previous page.")
    limit: int = Field(10, ge=1, le=400, description="The maximum number of projects.")
    search: Text = Field("", description="A part of the name, or the id.")
    timeout: int | None = Field(
        None,
        ge=100,
        le=30_000,
        description="Milliseconds; if the list takes longer, the response is 503.",
    )


class ProjectsQuery(SharedProjectsQuery):
    org_id: Text | None = Field(None, description=ORG_ID_DESCRIPTION)
    recoverable: bool = Field(
        False, description="List the deleted projects that can be recovered instead of the others."
    )


class RegionsQuery(Schema):
    org_id: Text | None = Field(None, description=ORG_ID_DESCRIPTION)


class BranchesQuery(Schema):
    cursor: Text | None = Field(None, description="The `next` of the previous page.")
    # A caller that sends no limit wants all branches, so the default is the largest page.
    limit: int = Field(MAX_LIMIT, ge=1, le=MAX_LIMIT, description="The maximum number of branches.")
    search: Text = Field("", description="A part of the name, or the beginning of the id.")
    sort_by: SortBy | None = Field(None, description="`updated_at` by default.")
    sort_order: Annotated[SortOrder, BeforeValidator(_lowercase)] | None = Field(
        None, description="`desc` by default."
    )
    include_deleted: Annotated[
        bool | None,
        NotOffered(NO_RECOVERY, unless=(False,)),
        BeforeValidator(_flag),
    ] = None

    def filters(self) -> BranchFilters:
        return BranchFilters(**self.dict(exclude={"include_deleted"}))


class DeletionQuery(Schema):
    hard_delete: Annotated[
        bool | None, NotOffered(NO_RECOVERY, unless=(True,)), BeforeValidator(_flag)
    ] = None


class OperationsQuery(Schema):
    """Commas separate several values of one filter. An operation is listed if it matches one value
    of every filter that is set."""

    cursor: Text | None = Field(None, description="The cursor of the previous page.")
    # A caller that sends no limit wants all operations, so the default is the largest page.
    limit: int = Field(1000, ge=1, le=1000, description="The maximum number of operations.")
    action: Annotated[Text, one_of(Action.values)] = Field(
        "", description="Actions, such as `start_compute,suspend_compute`."
    )
    status: Annotated[Text, one_of(OperationStatus.values)] = Field(
        "", description="Statuses, such as `failed,cancelled`."
    )
    initiator: Annotated[Text, one_of(ActorType)] = Field(
        "", description="Types of initiators, such as `user,client`."
    )
    endpoint_id: Annotated[Text, ids_like("ep-[a-z0-9-]{1,50}", most=MAX_IDS)] = Field(
        "", description="Ids of at most 20 endpoints."
    )
    branch_id: Annotated[Text, ids_like("br-[a-z0-9-]{1,50}", most=MAX_IDS)] = Field(
        "", description="Ids of at most 20 branches."
    )
    chain_id: Annotated[Text, ids_like(UUID, most=MAX_IDS)] = Field(
        "", description="Ids of at most 20 chains; the operations of one request form a chain."
    )
    since: Annotated[Text, Stated(format="date-time")] | None = Field(
        None, description="Created at this time or later: a timestamp with a time zone."
    )
    until: Annotated[Text, Stated(format="date-time")] | None = Field(
        None, description="Created before this time: a timestamp with a time zone."
    )
    whole_chains: bool = Field(
        False, description="Also list the other operations of the chains of those that match."
    )

    def as_filter(self) -> OperationFilter:
        others = {"cursor", "limit", "whole_chains"}
        return filter_of(**self.dict(exclude=others, exclude_none=True))


class OperationQuery(Schema):
    wait: int = Field(
        0,
        ge=0,
        le=60,
        description="Respond when the operation has ended, or after this number of seconds.",
    )


class ConnectionQuery(Schema):
    database_name: Text
    role_name: Text
    branch_id: Text | None = None
    endpoint_id: Text | None = None
    pooled: bool = False
    # An addition of Perch. With `false`, the response contains no secret, and no event is recorded.
    password: bool = True
