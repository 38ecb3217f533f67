"""`/events` and `/projects/{project_id}/events`: pages of a list of events, or a stream of them.
`/mark` and `/projects/{project_id}/mark` tell clients that poll whether there are new ones."""

from typing import Annotated, Any

from django.http import HttpResponseBase, JsonResponse
from ninja import Field, Query, Schema

from controlplane.actors import ActorType
from controlplane.api.event_streams import open_stream
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.fields import (
    UUID,
    PointInTime,
    Stated,
    Text,
    ids_like,
    one_of,
    several,
    told,
)
from controlplane.api.http.pagination import page_of
from controlplane.api.http.routing import Router
from controlplane.api.responses.shared import Cursor
from controlplane.events.recording import as_json
from controlplane.services.monitoring import dashboard, events
from controlplane.services.monitoring.events import (
    TYPES,
    EventFilter,
    actors_named,
    ids_named,
    operation_named,
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
    since: PointInTime | None = Field(None, description="from this moment on")
    until: PointInTime | None = Field(None, description="before this moment")
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
            since=self.since,
            until=self.until,
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
    at: str = told("to the microsecond, UTC", "2026-01-31T12:00:00.123456Z")
    summary: str = Field(description="one sentence for people")
    changes: dict[str, ChangeOut] = Field(description="by field; never contains secrets")
    operation: EventOperationOut | None = Field(
        description="the operation that an `operation.*` event is about, otherwise null"
    )


class EventsPage(Schema):
    events: list[EventOut]
    pagination: Cursor | None = None


class Mark(Schema):
    mark: str = told("compare it only for equality", "9f86d081884c7d65")


router = Router(tags=["events"])

STREAM = "text/event-stream"
DESCRIPTION = (
    "A page of events, the newest first. Its `cursor` requests the next page.\n\n"
    f"With `Accept: {STREAM}`, the response is a stream without end (server-sent events): each "
    "event when it happens, with its JSON object as `data`. If `Last-Event-ID` is the `id` of the "
    "last event received, the stream begins with the events missed since. `cursor` and `limit` "
    "have no effect on a stream."
)
AS_STREAM = {
    "responses": {
        200: {
            "content": {
                STREAM: {"schema": {"type": "string"}, "example": "id: 8123-77\ndata: {…}\n\n"}
            }
        }
    },
    "parameters": [
        {
            "in": "header",
            "name": "Last-Event-ID",
            "schema": {"type": "string"},
            "description": "for a stream: the `id` of the last event received",
        }
    ],
}


@router.get(
    "/events",
    response=EventsPage,
    summary="Events of the account",
    description=f"{DESCRIPTION} Events of deleted projects are included.",
    openapi_extra=AS_STREAM,
)
def list_account_events(
    request: AuthenticatedRequest, query: Query[EventsQuery]
) -> HttpResponseBase:
    return _answer(request, None, query)


@router.get(
    "/projects/{project_id}/events",
    response=EventsPage,
    summary="Events of a project",
    description=DESCRIPTION,
    openapi_extra=AS_STREAM,
)
def list_project_events(
    request: AuthenticatedRequest, project_id: str, query: Query[EventsQuery]
) -> HttpResponseBase:
    return _answer(request, project_id, query)


@router.get("/mark", response=Mark, summary="Mark of the account")
def get_account_mark(request: AuthenticatedRequest) -> dict[str, str]:
    """Returns a text that changes with every event of the account. A client that polls reads the
    account again only when it has changed. With a key that is limited to a project, it is the
    project's mark."""
    own = request.api_key.project_id
    mark = (
        dashboard.mark_of_project(request.auth, own)
        if own
        else dashboard.mark_of_account(request.auth)
    )
    return {"mark": mark}


@router.get("/projects/{project_id}/mark", response=Mark, summary="Mark of a project")
def get_project_mark(request: AuthenticatedRequest, project_id: str) -> dict[str, str]:
    """Returns a text that changes with every event of the project, and with each step of its
    unfinished operations. A client that polls reads the project again only when it has changed."""
    return {"mark": dashboard.mark_of_project(request.auth, project_id)}


def _answer(
    request: AuthenticatedRequest, project_id: str | None, query: EventsQuery
) -> HttpResponseBase:
    event_filter = query.as_filter()
    if STREAM in request.headers.get("Accept", ""):
        last = request.headers.get("Last-Event-ID", "") or query.last_event_id
        return open_stream(request, project_id, event_filter, last_event_id=last)
    page = events.list_events(
        request.auth, project_id, event_filter, cursor=query.cursor, limit=query.limit
    )
    answer = page_of("events", page, events.cursor_of)
    answer["events"] = [as_json(event) for event in page]
    # `as_json` has already made what the client gets. So this response is not rendered by the
    # schema `EventsPage`, which only describes it in the API's document.
    return JsonResponse(answer)
