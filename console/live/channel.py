"""The live channel for pages: server-sent events that say only that something has changed. The page
then renews what it shows.

A browser has one stream for all its windows. The page that opens it names the projects of the other
windows too (`static/shared_source.js`).
"""

import re
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack

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
# The most projects besides the page's own, and how each is named: `<project>~<mark>`. The project
# is "" for all projects of the account.
MOST_OTHERS = watches.MOST_WATCHES
ALSO = re.compile(r"([-\w]{0,100})~([\w.]{0,40})", re.ASCII)
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
    seen = {project_id: request.headers.get("Last-Event-ID") or request.GET.get("seen", "")}
    for other in request.GET.getlist("also")[:MOST_OTHERS]:
        if found := ALSO.fullmatch(other):
            seen.setdefault(found[1], found[2])
    answer = StreamingHttpResponse(
        _pieces(request, project_id, seen), content_type="text/event-stream; charset=utf-8"
    )
    # A reverse proxy in front must pass on each piece at once.
    answer["X-Accel-Buffering"] = "no"
    return answer


def _pieces(
    request: ConsoleRequest, project_id: str, seen: dict[str, str]
) -> Generator[str, None, None]:
    """Yield the events of the page's project or, if it is "", of all projects, and of the others in
    `seen`: the mark that their pages have seen, by project."""
    ends_at = time.monotonic() + LONGEST
    news = threading.Event()
    # Sent at once, so that the page knows that nothing in between holds the stream back.
    yield f"retry: {RETRY}\n{HERE}"
    with ExitStack() as readers:
        joined = {}
        for one in seen:
            watch = readers.enter_context(watches.watching(request.api.changes, one, news))
            if watch is not None:
                joined[one] = watch
            elif one == project_id:
                return
            else:
                yield _not_watched(one)
        while time.monotonic() < ends_at:
            # Cleared before the marks are read, so that a change after that sets it.
            news.clear()
            changed = {
                one: watch.mark
                for one, watch in joined.items()
                if watch.mark not in ("", seen[one])
            }
            if changed:
                seen |= changed
                for one, mark in changed.items():
                    yield _changed(one, mark, is_own=one == project_id)
                time.sleep(PAUSE)
            elif ended := [one for one, watch in joined.items() if watch.has_ended]:
                if project_id in ended:
                    return
                for one in ended:
                    del joined[one]
                    yield _not_watched(one)
            else:
                has_news = news.wait(HEARTBEAT)
                if sessions.has_ended(request):
                    return
                if not has_news:
                    yield HERE


def _changed(project_id: str, mark: str, *, is_own: bool) -> str:
    # The browser sends the last id when it reconnects.
    return f"id: {mark}\ndata: changed\n\n" if is_own else f"data: changed {project_id}~{mark}\n\n"


def _not_watched(project_id: str) -> str:
    """The pages of that project poll, and try again later."""
    return f"data: full {project_id}\n\n"
