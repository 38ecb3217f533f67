"""Live regions: parts of a page that renew themselves while the page is visible."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.errors import APIError, NotFound
from console.api.resources.operations import Operation
from console.pages.addresses import with_query
from console.pages.statuses import NOTHING, Outcome, outcome
from console.request import ConsoleRequest

# Milliseconds until a region is polled again: while it shows an unfinished operation, which usually
# takes well under a second; otherwise; and at a server without marks. `static/live.js` makes the
# pauses longer while nothing changes.
UNFINISHED_POLL_INTERVAL_MS, POLL_INTERVAL_MS, MARKLESS_POLL_INTERVAL_MS = 250, 2_000, 5_000

# Parameters of a poll: the mark that the region was made at, and the newest operation in it.
MARK, KNOWN = "mark", "known"


@dataclass(frozen=True)
class Polling:
    """Where the region is polled, and when it has to be read again."""

    # The query of the region's address; "" for none.
    query: str = ""
    # Milliseconds, for a region that changes without its mark; otherwise 0.
    every: int = 0
    # The outcome of the operations shown.
    outcome: Outcome = NOTHING
    # The announcement for screen readers once the last operation has ended.
    ending: str = ""
    problem: APIError | None = None
    sign_in_url: str = ""
    # The id of the newest operation shown; another text while an operation is unfinished.
    known: str = ""
    # The mark from before the region's contents were read; "" if the server has none.
    mark: str = ""
    region_url: str = ""

    @property
    def pause(self) -> int:
        """Milliseconds until the next poll."""
        return self.every or (POLL_INTERVAL_MS if self.mark else MARKLESS_POLL_INTERVAL_MS)


def polling(request: ConsoleRequest, operations: Iterable[Operation], query: str = "") -> Polling:
    """Return the polling of a region that shows `operations`, the newest first."""
    shown = list(operations)
    found = outcome(shown)
    newest = shown[0].id if shown else ""
    if found.unfinished:
        return Polling(query, UNFINISHED_POLL_INTERVAL_MS, found, known=f"{newest}~")
    # The operation of the reader's change may have ended before the page saw it.
    if newest == request.GET.get(KNOWN, newest):
        return Polling(query, outcome=found, known=newest)
    # What it has changed may have been read before its end, so the region is read once more.
    return Polling(query, UNFINISHED_POLL_INTERVAL_MS, found, ending=found.ending, known=newest)


View = Callable[..., HttpResponse]
PageAndRegion = tuple[View, View]
# What a page shows, and its region's polling; made of a request and the ids in its address.
Shown = tuple[dict[str, Any], Polling]
Contents = Callable[..., Shown]


def page_and_region(contents: Contents, page: str, region: str) -> PageAndRegion:
    """Make the two views of a live page: the whole page, and its region alone. `page` and `region`
    are their templates; the page's must include the region's. The name of the second view's URL is
    that of the first with “_live”."""

    def read(request: ConsoleRequest, mark: str, ids: dict[str, str]) -> dict[str, Any]:
        context, state = contents(request, **ids)
        assert request.resolver_match is not None
        name = (request.resolver_match.url_name or "").removesuffix("_live")
        url = with_query(reverse(f"{name}_live", kwargs=ids), state.query)
        state = replace(state, region_url=url, mark="" if state.every else mark)
        return {**context, "polling": state}

    @require_safe
    def show(request: ConsoleRequest, **ids: str) -> HttpResponse:
        return render(request, page, read(request, _mark(request, ids), ids))

    @require_safe
    def live(request: ConsoleRequest, **ids: str) -> HttpResponse:
        mark = _mark(request, ids)
        if mark and mark == request.GET.get(MARK):
            return HttpResponse(status=204)
        return render(request, region, {**read(request, mark, ids), "fragment": True})

    return show, live


def _mark(request: ConsoleRequest, ids: Mapping[str, str]) -> str:
    """Return the mark of what the page shows. It has to be read before the page's contents: what
    changes in between then changes the mark too."""
    return request.api.mark(ids.get("project_id", ""))


def render_problem(
    request: ConsoleRequest, problem: APIError, *, sign_in_url: str = ""
) -> HttpResponse:
    """Render a problem of a poll. It replaces only the region's status line; the rest stays."""
    # While a server restarts, a reverse proxy in front of it may answer 404 in its place.
    is_gone = isinstance(problem, NotFound) and problem.is_told
    state = Polling(problem=problem, sign_in_url=sign_in_url, region_url=request.path)
    answer = render(request, "_poll.html", {"polling": state, "is_gone": is_gone})
    answer["HX-Retarget"] = "#poll"
    answer["HX-Reswap"] = "morph"
    # Undo the selection of the region, which a request for a whole page has, such as a search.
    answer["HX-Reselect"] = "unset"
    answer["HX-Trigger"] = "perch:gone" if is_gone else "perch:problem"
    return answer


def is_poll(request: ConsoleRequest) -> bool:
    return bool(request.htmx) and request.method == "GET" and request.htmx.target == "live"
