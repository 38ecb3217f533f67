"""The live channel as a page hears it: server-sent events, of which each says that something has
changed, and nothing more. The page then renews what it shows."""

import time
from collections.abc import Generator

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from console import changes, sessions
from console.request import ConsoleRequest

# Milliseconds until a browser comes back that has lost the stream.
RETRY = 2000
# Seconds after which a silent stream says that it is there, and after which it ends: the browser
# then comes back by itself, and is asked anew who it is.
HEARTBEAT, LONGEST = 20.0, 900.0
# Seconds between two words: what changes at once is told once.
PAUSE = 0.25
# An event and no comment: a page can tell by it that nothing is lost.
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
    if not changes.has_room(request.api.changes, project_id):
        # An answer that ends the channel, unlike a stream that ends: the page looks for itself.
        return HttpResponse(status=429)
    seen = request.headers.get("Last-Event-ID") or request.GET.get("seen", "")
    answer = StreamingHttpResponse(
        _pieces(request, project_id, seen), content_type="text/event-stream; charset=utf-8"
    )
    # A proxy in front must pass on what comes, when it comes.
    answer["X-Accel-Buffering"] = "no"
    return answer


def _pieces(request: ConsoleRequest, project_id: str, seen: str) -> Generator[str, None, None]:
    ends_at = time.monotonic() + LONGEST
    # At once, so that the page knows that nothing on the way holds the stream back.
    yield f"retry: {RETRY}\n{HERE}"
    with changes.watching(request.api.changes, project_id) as watch:
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
