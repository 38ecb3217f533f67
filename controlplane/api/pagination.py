"""Query parameters: of lists, a limit in range and the cursor of the page before."""

from datetime import datetime

from ninja import Field, Schema

from controlplane.api.fields import Text
from controlplane.services.event_filters import (
    EventFilter,
    actors_named,
    ids_named,
    operation_named,
    time_named,
    types_named,
)


class ProjectsQuery(Schema):
    cursor: Text | None = None
    limit: int = Field(10, ge=1, le=400)
    search: Text = ""


class OperationsQuery(Schema):
    cursor: Text | None = None
    # Without a limit a caller means all of them, as far as one page may go.
    limit: int = Field(1000, ge=1, le=1000)


class EventsQuery(Schema):
    cursor: Text | None = Field(None, description="of the page before; it has the older ones")
    limit: int = Field(100, ge=1, le=1000)
    type: Text = Field(
        "",
        description="types, separated by commas; `endpoint.*` is all of a kind",
        examples=["endpoint.active,endpoint.idle", "operation.*"],
    )
    actor: Text = Field(
        "",
        description="types of actors, separated by commas; or a type and a name, as `user:deploy`",
        examples=["client,idleness", "user:deploy"],
    )
    branch_id: Text = Field("", description="branches, separated by commas")
    endpoint_id: Text = Field("", description="endpoints, separated by commas")
    operation_id: Text = ""
    since: datetime | None = Field(None, description="from this moment on")
    until: datetime | None = Field(None, description="before this moment")
    last_event_id: Text = Field(
        "",
        description="of a stream: the `id` of the last event that was had, where the header "
        "`Last-Event-ID` cannot be sent",
    )

    def wanted(self) -> EventFilter:
        """Raises Invalid."""
        actors, actor_name = actors_named(self.actor)
        return EventFilter(
            types=types_named(self.type),
            actors=actors,
            actor_name=actor_name,
            branch_ids=ids_named(self.branch_id),
            endpoint_ids=ids_named(self.endpoint_id),
            operation_id=operation_named(self.operation_id),
            since=time_named("since", self.since),
            until=time_named("until", self.until),
        )


class ConnectionQuery(Schema):
    database_name: Text
    role_name: Text
    branch_id: Text | None = None
    endpoint_id: Text | None = None
    pooled: bool = False
