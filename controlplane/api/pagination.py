"""Query parameters: of lists, a limit in range and the cursor of the page before."""

from ninja import Field, Schema

from controlplane.api.fields import Text


class ProjectsQuery(Schema):
    cursor: Text | None = None
    limit: int = Field(10, ge=1, le=400)
    search: Text = ""


class OperationsQuery(Schema):
    cursor: Text | None = None
    # Without a limit a caller means all of them, as far as one page may go.
    limit: int = Field(1000, ge=1, le=1000)


class ConnectionQuery(Schema):
    database_name: Text
    role_name: Text
    branch_id: Text | None = None
    endpoint_id: Text | None = None
    pooled: bool = False
