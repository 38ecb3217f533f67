"""Live regions: the part of a page that renews itself while an operation in it is unfinished."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse, HttpResponseNotModified
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api_errors import APIError, NotFound
from console.api_operations import Operation
from console.outcomes import NOT_READ, NOTHING, Outcome, There, outcome
from console.request import ConsoleRequest

# htmx's own: "this poll has come to its end".
STOP_POLLING = 286

# (from the how-manieth poll on, the pause before the next): an operation usually takes well
# under a second, and one that does not has no need of a hurried watcher.
PACES = ((40, "5s"), (12, "1s"), (2, "500ms"), (0, "250ms"))
PACE_AFTER_A_PROBLEM = "5s"

# In the address of the region that is asked for after a change: the newest operation before it.
KNOWN = "known"


@dataclass(frozen=True)
class Polling:
    """When and where the region asks again; with `every` empty it doesn't."""

    # The region's own address, and the one of its next turn.
    region_url: str
    next_url: str = ""
    every: str = ""
    # What the operations shown have come to.
    outcome: Outcome = NOTHING
    # What a screen reader is told when the last operation has ended.
    ending: str = ""
    problem: APIError | None = None
    sign_in_url: str = ""
    # The id of the newest operation shown.
    newest: str = ""


def polling(
    request: ConsoleRequest,
    url: str,
    operations: Iterable[Operation],
    there: There | None = NOT_READ,
) -> Polling:
    """The polling of a region at `url` that shows `operations`, the newest first; `there` is what
    they may be about, None where they are but some."""
    shown = list(operations)
    found = outcome(shown, there)
    newest = shown[0].id if shown else ""
    turn = _turn(request)
    if not found.unfinished:
        # What its reader asked for may have ended before the page saw it begin.
        has_ended = turn or newest != request.GET.get(KNOWN, newest)
        return Polling(url, outcome=found, ending=found.ending if has_ended else "", newest=newest)
    pace = next(pause for since, pause in PACES if turn >= since)
    return Polling(url, _with_turn(url, turn + 1), pace, outcome=found, newest=newest)


View = Callable[..., HttpResponse]
# Of a request and what its address names: what a page shows, and the polling of its region.
Contents = Callable[..., tuple[Mapping[str, Any], Polling]]


def page_and_region(contents: Contents, page: str, region: str) -> tuple[View, View]:
    """The views of a live page: of the whole, and of its region alone, by their templates. The
    page's includes the region's; the second view's address is the one that the polling names."""

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
    """The region alone, as its own URL answers; nothing where the page shows just that."""
    status = 200 if state.every else STOP_POLLING
    answer = render(request, template, {**context, "polling": state, "fragment": True})
    answer.status_code = status
    return _unless_shown(request, answer)


# In a region, what is another each time it is written though it shows the same: the tokens of its
# forms, the count of its polls, and times, which move on by themselves in the browser.
PASSING = re.compile(
    rb'(?<= name="csrfmiddlewaretoken" value=")\w+|(?<= name="once" value=")[^"]*'
    rb'|(?<=[?&;]n=)\d+|<p id="announce".*?</p>|(?<=>)[^<]*(?=</time>)',
    re.DOTALL,
)


def _unless_shown(request: ConsoleRequest, answer: HttpResponse) -> HttpResponse:
    """The answer, with a mark of what it shows; without a body where the page has that mark."""
    digest = hashlib.sha256(PASSING.sub(b"", answer.content)).hexdigest()[:20]
    tag = f'"{digest}"'
    # Packing it makes the mark a weak one.
    if request.headers.get("If-None-Match", "").removeprefix("W/") == tag:
        answer = HttpResponseNotModified()
    answer["ETag"] = tag
    return answer


def render_problem(
    request: ConsoleRequest, problem: APIError, *, sign_in_url: str = ""
) -> HttpResponse:
    """What replaces only the region's status line when a poll fails: the rest stays as it was."""
    # Where a server is being started anew, what stands before it may answer in its place.
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
    # Who asks for a whole page, as a search does, selects the region out of it.
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
