"""The query parameters of event lists and event streams, and the fields of their responses."""

from datetime import datetime
from typing import Annotated, Any

from ninja import Field, Schema

from controlplane.actors import ActorType
from controlplane.api.http.fields import UUID, Stated, Text, ids_like, one_of, several
from controlplane.api.responses.shared import Cursor
from controlplane.services.monitoring.events import (
    TYPES,
    EventFilter,
    actors_named,
    ids_named,
    operation_named,
    time_named,
    types_named,
)

KINDS = sorted({f"{name.rpartition('.')[0]}.*" for name in TYPES})
ACTORS = rf"^(?:{several(ActorType)}|(?:{'|'.join(ActorType)}):[ -~]*)?$"


class EventsQuery(Schema):
    cursor: Text | None = Field(
        None, description="the cursor of the previous page; the next page has older events"
    )
    limit: int = Field(100, ge=1, le=1000)
    type: Annotated[Text, one_of([*TYPES, *KINDS])] = Field(
        "",
        description="types, separated by commas; `endpoint.*` stands for all types of a kind",
        examples=["endpoint.active,endpoint.idle", "operation.*"],
    )
    actor: Annotated[Text, Stated(pattern=ACTORS)] = Field(
        "",
        description="types of actors, separated by commas; or one type and a name, such as "
        "`user:deploy`",
        examples=["client,idleness", "user:deploy"],
    )
    branch_id: Text = Field("", description="ids of branches, separated by commas")
    endpoint_id: Text = Field("", description="ids of endpoints, separated by commas")
    operation_id: Annotated[Text, ids_like(UUID, most=1)] = ""
    since: datetime | None = Field(None, description="from this moment on")
    until: datetime | None = Field(None, description="before this moment")
    last_event_id: Text = Field(
        "",
        description="for a stream: the `id` of the last event received, if the header "
        "`Last-Event-ID` cannot be sent",
    )

    def as_filter(self) -> EventFilter:
        """The filter that the parameters describe. Raises Invalid for a bad value."""
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


class ActorOut(Schema):
    type: str = Field(description=f"one of {', '.join(ActorType)}")
    name: str = Field(description="the key's name for `user` and `retry`, the role's for `client`")
    api_key_id: int | None
    address: str


class ChangeOut(Schema):
    before: Any = Field(alias="from")
    to: Any


class EventOperationOut(Schema):
    id: str
    action: str
    error: str | None = Field(description="why it failed or was cancelled")
    # Events of earlier releases do not have it.
    duration_ms: int | None = None


class EventOut(Schema):
    """One change that a user, a client or the platform has made. Every field is always present."""

    id: str
    type: str = Field(description=f"one of {', '.join(TYPES)}")
    project_id: str | None
    branch_id: str | None
    endpoint_id: str | None
    operation_ids: list[str] = Field(description="the ids of the operations that belong to it")
    actor: ActorOut
    at: str = Field(description="to the microsecond, UTC", examples=["2026-01-31T12:00:00.123456Z"])
    summary: str = Field(description="one sentence for people")
    changes: dict[str, ChangeOut] = Field(description="by field; never contains secrets")
    operation: EventOperationOut | None = Field(
        description="the operation that an `operation.*` event is about, otherwise null"
    )


class EventsPage(Schema):
    events: list[EventOut]
    pagination: Cursor | None = None


class Mark(Schema):
    mark: str = Field(description="compare it only for equality", examples=["9f86d081884c7d65"])
