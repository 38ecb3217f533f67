"""The live channel for pages: server-sent events that say only that something has changed. The page
then renews what it shows."""

import time
from collections.abc import Generator

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from console.live import watches
from console.request import ConsoleRequest
from console.sign_in import sessions

# Milliseconds after which a browser reconnects that has lost the stream.
RETRY = 2000
# Seconds of silence after which a stream sends a sign of life, and seconds after which it ends: the
# browser then reconnects, and its sign-in is checked again.
HEARTBEAT, LONGEST = 20.0, 900.0
# Seconds between two events, so that simultaneous changes are reported once.
PAUSE = 0.25
# An event and not a comment, so that the page notices that the stream is alive.
HERE = "data: here\n\n"


@require_safe
def of_account(request: ConsoleRequest) -> HttpResponseBase:
    return _stream(request, "")


@require_safe
def of_project(request: ConsoleRequest, project_id: str) -> HttpResponseBase:
    return _stream(request, project_id)


def _stream(request: ConsoleRequest, project_id: str) -> HttpResponseBase:
    if request.method == "HEAD":
        return HttpResponse(content_type="text/event-stream")
    if not watches.has_room(request.api.changes, project_id):
        # This answer ends the channel, unlike the end of a stream: the page then polls instead.
        return HttpResponse(status=429)
    seen = request.headers.get("Last-Event-ID") or request.GET.get("seen", "")
    answer = StreamingHttpResponse(
        _pieces(request, project_id, seen), content_type="text/event-stream; charset=utf-8"
    )
    # A reverse proxy in front must pass on each piece at once.
    answer["X-Accel-Buffering"] = "no"
    return answer


def _pieces(request: ConsoleRequest, project_id: str, seen: str) -> Generator[str, None, None]:
    ends_at = time.monotonic() + LONGEST
    # Sent at once, so that the page knows that nothing in between holds the stream back.
    yield f"retry: {RETRY}\n{HERE}"
    with watches.watching(request.api.changes, project_id) as watch:
        while watch and time.monotonic() < ends_at:
            mark = watch.await_change(seen, within=HEARTBEAT)
            if sessions.has_ended(request):
                return
            if mark in ("", seen):
                if watch.has_ended:
                    return
                yield HERE
                continue
            seen = mark
            yield f"id: {mark}\ndata: changed\n\n"
            time.sleep(PAUSE)
