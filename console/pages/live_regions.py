"""Live regions: parts of a page that renew themselves while an operation in them is unfinished."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse, HttpResponseNotModified
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api.errors import APIError, NotFound
from console.api.resources.operations import Operation
from console.pages.outcomes import NOT_READ, NOTHING, Existing, Outcome, outcome
from console.request import ConsoleRequest

# The status that makes htmx stop polling.
STOP_POLLING = 286

# (number of the poll from which on this holds, the pause before the next). An operation usually
# takes well under a second. One that takes longer need not be watched as closely.
PACES = ((40, "5s"), (12, "1s"), (2, "500ms"), (0, "250ms"))
PACE_AFTER_A_PROBLEM = "5s"

# A parameter of the region's address after a change: the newest operation before that change.
KNOWN = "known"


@dataclass(frozen=True)
class Polling:
    """When and where the region polls again; if `every` is empty, it does not."""

    # The address of the region, and that of its next poll.
    region_url: str
    next_url: str = ""
    every: str = ""
    # The outcome of the operations shown.
    outcome: Outcome = NOTHING
    # The announcement for screen readers once the last operation has ended.
    ending: str = ""
    problem: APIError | None = None
    sign_in_url: str = ""
    # The id of the newest operation shown.
    newest: str = ""


def polling(
    request: ConsoleRequest,
    url: str,
    operations: Iterable[Operation],
    existing: Existing | None = NOT_READ,
) -> Polling:
    """Return the polling of a region at `url` that shows `operations`, the newest first.

    `existing` is what they may be about; None if they are only a selection.
    """
    shown = list(operations)
    found = outcome(shown, existing)
    newest = shown[0].id if shown else ""
    turn = _turn(request)
    if not found.unfinished:
        # The operation of the reader's change may have ended before the page saw it.
        has_ended = turn or newest != request.GET.get(KNOWN, newest)
        return Polling(url, outcome=found, ending=found.ending if has_ended else "", newest=newest)
    pace = next(pause for since, pause in PACES if turn >= since)
    return Polling(url, _with_turn(url, turn + 1), pace, outcome=found, newest=newest)


View = Callable[..., HttpResponse]
# Takes a request and the ids in its address. Returns what the page shows, and its region's polling.
Contents = Callable[..., tuple[Mapping[str, Any], Polling]]


def page_and_region(contents: Contents, page: str, region: str) -> tuple[View, View]:
    """Make the two views of a live page: the whole page, and its region alone.

    `page` and `region` are their templates; the page's must include the region's. The address of
    the second view must be the one that the polling names.
    """

    @require_safe
    def show(request: ConsoleRequest, **ids: str) -> HttpResponse:
        context, state = contents(request, **ids)
        return render(request, page, {**context, "polling": state})

    @require_safe
    def live(request: ConsoleRequest, **ids: str) -> HttpResponse:
        context, state = contents(request, **ids)
        return render_live(request, region, context, state)

    return show, live


def render_live(
    request: ConsoleRequest, template: str, context: Mapping[str, Any], state: Polling
) -> HttpResponse:
    """Render the region alone; 304 without a body if the page shows the same already."""
    status = 200 if state.every else STOP_POLLING
    answer = render(request, template, {**context, "polling": state, "fragment": True})
    answer.status_code = status
    return _unless_shown(request, answer)


# The parts of a region that differ each time although it shows the same: the tokens of its forms,
# the number of the poll, and times, which the browser keeps up to date itself.
PASSING = re.compile(
    rb'(?<= name="csrfmiddlewaretoken" value=")\w+|(?<= name="once" value=")[^"]*'
    rb'|(?<=[?&;]n=)\d+|<p id="announce".*?</p>|(?<=>)[^<]*(?=</time>)',
    re.DOTALL,
)


def _unless_shown(request: ConsoleRequest, answer: HttpResponse) -> HttpResponse:
    """Add an ETag for what is shown to the answer; make it a 304 if the page has that ETag."""
    digest = hashlib.sha256(PASSING.sub(b"", answer.content)).hexdigest()[:20]
    tag = f'"{digest}"'
    # Compression makes the ETag weak.
    if request.headers.get("If-None-Match", "").removeprefix("W/") == tag:
        answer = HttpResponseNotModified()
    answer["ETag"] = tag
    return answer


def render_problem(
    request: ConsoleRequest, problem: APIError, *, sign_in_url: str = ""
) -> HttpResponse:
    """Render a problem of a poll. It replaces only the region's status line; the rest stays."""
    # While a server restarts, a reverse proxy in front of it may answer 404 in its place.
    over = isinstance(problem, NotFound) and problem.is_told
    state = Polling(
        region_url=request.path,
        next_url=request.get_full_path(),
        every="" if over else PACE_AFTER_A_PROBLEM,
        problem=problem,
        sign_in_url=sign_in_url,
    )
    answer = render(request, "_poll.html", {"polling": state})
    answer["HX-Retarget"] = "#poll"
    answer["HX-Reswap"] = "morph"
    # Undo the selection of the region, which a request for a whole page has, such as a search.
    answer["HX-Reselect"] = "unset"
    answer["HX-Trigger"] = "perch:gone" if over else "perch:problem"
    return _unless_shown(request, answer)


def is_poll(request: ConsoleRequest) -> bool:
    return bool(request.htmx) and request.method == "GET" and request.htmx.target == "live"


def _turn(request: ConsoleRequest) -> int:
    turn = request.GET.get("n", "0")
    return int(turn) if turn.isascii() and turn.isdigit() and len(turn) < 6 else 0


def _with_turn(url: str, turn: int) -> str:
    return f"{url}{'&' if '?' in url else '?'}n={turn}"
