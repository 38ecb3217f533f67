"""`/events` and `/projects/{project_id}/events`: pages of a list of events, or a stream of them.
`/mark` and `/projects/{project_id}/mark` tell clients that poll whether there are new ones."""

from typing import Any

from django.http import HttpResponseBase, JsonResponse
from ninja import Query

from controlplane.api.event_fields import EventsPage, EventsQuery, Mark
from controlplane.api.event_streams import open_stream
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.events.shape import as_json
from controlplane.services.monitoring import dashboard, events

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
    answer: dict[str, Any] = {"events": [as_json(event) for event in page]}
    if page:
        answer["pagination"] = {"cursor": events.cursor_of(page[-1])}
    # `as_json` has already made what the client gets. So this response is not rendered by the
    # schema `EventsPage`, which only describes it in the API's document.
    return JsonResponse(answer)
