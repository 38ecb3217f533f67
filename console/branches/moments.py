"""The page “Go back to a moment”: a past moment of a branch is chosen, and what it stands for is
shown before a branch is created from it or restored to it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.timezone import get_current_timezone
from django.views.decorators.http import require_POST, require_safe

from console.api.errors import Failure
from console.api.fields import in_all_zones
from console.api.parallel import in_parallel
from console.api.resources.branches import Branch
from console.api.resources.history import History, PastMoment, ResolvedMoment
from console.branches.changes import replace_data, replacement_refusal, with_children
from console.branches.forms import (
    NAMED,
    MomentShown,
    NewBranchForm,
    name_for_current_data,
    name_list,
)
from console.branches.history_band import (
    ONE_MICROSECOND,
    band,
    happenings,
    newest_history,
    summary,
    undos,
)
from console.forms.api_requests import body_of
from console.forms.fields import PLAIN
from console.pages.addresses import back
from console.pages.problems import problems_beside, spell_out, translate_message
from console.pages.responses import FormPage, choices, done
from console.request import ConsoleRequest

LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
# Blanks before the zone, which people write and datetime does not read.
BEFORE_ZONE = re.compile(r"\s+(?=(?:Z|UTC|[+-]\d\d(?::?\d\d)?)$)", re.IGNORECASE)
# The API's names of the fields, with which it begins its refusals.
FIELD = re.compile(r"\A(?:base_)?(?:timestamp|lsn)\b", re.IGNORECASE)
TIME_OF_DAY = re.compile(r"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?")
UNREADABLE = "Enter a time such as 2026-01-31 14:03:00Z or 14:03:00, or an LSN such as 0/1A2B3C4D."


def read_moment(text: str) -> PastMoment:
    """Read a time or an LSN as people type it. A time without a zone is in the reader's, and one
    without a day is the last one that has passed. Raises ValidationError."""
    typed = text.strip()
    if LSN.fullmatch(typed):
        return PastMoment(lsn=typed.upper())
    zoned = re.sub(r"(?i)UTC$", "Z", BEFORE_ZONE.sub("", typed))
    try:
        if TIME_OF_DAY.fullmatch(zoned):
            return PastMoment(_last_occurrence(time.fromisoformat(zoned)))
        at = datetime.fromisoformat(zoned)
        if not in_all_zones(at):
            raise ValueError("too near to an end of the calendar")
        return PastMoment(at.replace(tzinfo=at.tzinfo or get_current_timezone()).astimezone(UTC))
    except ValueError as error:
        raise forms.ValidationError(UNREADABLE) from error


def _last_occurrence(of_day: time) -> datetime:
    """Return when it was this time of day the last time."""
    zoned = of_day.replace(tzinfo=of_day.tzinfo or get_current_timezone())
    now = datetime.now(zoned.tzinfo)
    at = datetime.combine(now.date(), zoned)
    return (at if at <= now else at - timedelta(days=1)).astimezone(UTC)


@dataclass(frozen=True)
class Found:
    """The chosen moment, and what it stands for or why it is not available."""

    chosen: PastMoment | None = None
    moment: ResolvedMoment | None = None
    problem: str = ""

    @property
    def at(self) -> datetime | None:
        """Its place on the band: for a position in the log, the time of the last commit."""
        moment = self.moment
        known = moment and (moment.last or moment.base)
        return (self.chosen and self.chosen.at) or (known.at if known else None)

    @property
    def before_last(self) -> str:
        """The moment that leaves out the last commit as well."""
        last = self.moment and self.moment.last
        return PastMoment(last.at - ONE_MICROSECOND).text if last else ""

    @property
    def with_following(self) -> str:
        """The moment that includes the next commit."""
        following = self.moment and self.moment.following
        return PastMoment(following.at).text if following else ""


@require_safe
def show(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    api, typed, name = request.api, request.GET.get("moment", ""), request.GET.get("name", "")
    context: dict[str, Any] = {
        "project_id": project_id,
        "branch_id": branch_id,
        "here": reverse("branch_history", args=[project_id, branch_id]),
        "typed": typed,
        # The name that was typed for the new branch before its moment was chosen.
        "name": name,
        "carried": f"&{urlencode({'name': name})}" if name else "",
    }
    looks = "newest" in request.GET
    if request.htmx and looks:
        history, looked = newest_history(api, project_id, branch_id)
        shown = {**_history_context(history), "is_newer": True}
        return render(request, "_undos.html", {**context, **looked, **shown})
    if request.htmx:
        branch, found = in_parallel(
            lambda: api.branch(project_id, branch_id),
            lambda: _find(request, project_id, branch_id, typed),
        )
        answer = render(request, "_moment.html", {**context, "branch": branch, "found": found})
        query = urlencode({"moment": typed}) + context["carried"]
        answer["HX-Replace-Url"] = f"{context['here']}?{query}"
        return answer
    branch, project, (history, looked), found = in_parallel(
        lambda: api.branch(project_id, branch_id),
        lambda: api.project(project_id),
        lambda: (
            newest_history(api, project_id, branch_id)
            if looks
            else (api.history.of_branch(project_id, branch_id), {})
        ),
        lambda: _find(request, project_id, branch_id, typed),
    )
    context |= {**looked, **_history_context(history, found.at)}
    context |= {"branch": branch, "project": project, "found": found}
    return render(request, "branch_history.html", context)


def _history_context(history: History, chosen: datetime | None = None) -> dict[str, Any]:
    return {
        "history": history,
        "band": band(history, chosen=chosen),
        "summary": summary(history),
        "undos": undos(history),
        "happenings": happenings(history),
    }


def _find(request: ConsoleRequest, project_id: str, branch_id: str, typed: str) -> Found:
    """Return the chosen moment; an empty `Found` if nothing is typed."""
    if not typed.strip():
        return Found()
    try:
        chosen = read_moment(typed)
    except forms.ValidationError as error:
        return Found(problem=error.messages[0])
    try:
        return Found(chosen, request.api.history.resolve(project_id, branch_id, chosen))
    except Failure as error:
        return Found(chosen, problem=moment_message(spell_out(error)))


def moment_message(words: str) -> str:
    """Return what the API says of a moment, without its name of the field."""
    return translate_message(FIELD.sub("This moment", words))


def _chosen(request: ConsoleRequest) -> PastMoment | None:
    """Return the moment that the form's address names; None if it names none."""
    try:
        return read_moment(request.GET.get("moment", ""))
    except forms.ValidationError:
        return None


def _add_moment(form: forms.Form, chosen: PastMoment) -> None:
    """Show the moment as the form's first field, which cannot be changed there."""
    form.fields[chosen.field] = forms.CharField(
        label="LSN" if chosen.lsn else "Moment",
        required=False,
        initial=chosen.text,
        widget=MomentShown(chosen.at, chosen.text)
        if chosen.at
        else forms.TextInput(attrs={**PLAIN, "readonly": True}),
    )
    form.order_fields([chosen.field])


class RestoreToMomentForm(forms.Form):
    preserve_under_name = forms.CharField(label="Keep current data as branch", widget=NAMED)


def create(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Create a branch of a past moment, with an endpoint."""
    chosen = _chosen(request)
    if chosen is None:
        return _choose_first(request, project_id, branch_id)
    form = NewBranchForm(
        request.POST if request.method == "POST" else None,
        initial={"name": request.GET.get("name", "")},
    )
    _add_moment(form, chosen)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            body = body_of(form, "branch_history_create", **{chosen.field: chosen.text})
            body["branch"]["parent_id"] = branch_id
            branch = request.api.branching.create(project_id, body)
            url = reverse("branch", args=[project_id, branch.id])
            return done(request, url, f"Started creating branch {branch.name}.")
    parents = choices(request, lambda: [request.api.branch(project_id, branch_id)])
    return FormPage(
        title="Create branch from a past moment",
        intro=f"A copy of {parents[0].name if parents else 'the branch'} as it was then, with the "
        "roles, passwords and databases that it had, and an endpoint.",
        submit="Create branch",
        back=_page(request, project_id, branch_id),
    ).show(request, form)


def restore(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Replace the branch's data with its own of a past moment."""
    chosen = _chosen(request)
    if chosen is None:
        return _choose_first(request, project_id, branch_id)
    form = RestoreToMomentForm(request.POST if request.method == "POST" else None)
    _add_moment(form, chosen)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "preserve_under_name"):
            body = body_of(form, "branch_history_restore", **{chosen.field: chosen.text})
            body["source_branch_id"] = branch_id
            url = reverse("branch", args=[project_id, branch_id])
            return replace_data(request, project_id, branch_id, body, url)
    branches = choices(request, lambda: request.api.branches(project_id))
    branch, children = with_children(request, branches, branch_id)
    _suggest_kept_name(form, branch, children)
    return FormPage(
        title=f"Restore {branch.name if branch else 'the branch'} to a past moment",
        intro="The data of the branch, with its roles, passwords and databases, becomes "
        "what it was at this moment. The branch keeps its id, name, endpoint and host. It stays "
        "available while the past data is recovered; then open connections are closed.",
        submit="Restore branch",
        danger=True,
        back=_page(request, project_id, branch_id),
        blocked=replacement_refusal(branch, "", True) if request.method != "POST" else "",
    ).show(request, form)


@require_POST
def query(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Create an endpoint that reads the moment, and open the query page with it."""
    chosen = _chosen(request)
    if chosen is None:
        return _choose_first(request, project_id, branch_id)
    endpoint = request.api.history.travel(project_id, branch_id, chosen)
    place = {"branch": branch_id, "past_endpoint": endpoint.id, "moment": chosen.text}
    return done(request, f"{reverse('query', args=[project_id])}?{urlencode(place)}")


def _suggest_kept_name(form: forms.Form, branch: Branch | None, children: Sequence[Branch]) -> None:
    """Suggest a name for the branch that keeps the current data, and say what becomes of it."""
    if branch:
        form.initial["preserve_under_name"] = name_for_current_data(branch)
    words = "So that the restore can be undone."
    if children:
        words += f" The child branches ({name_list(children)}) become its children."
    form.fields["preserve_under_name"].help_text = words


def _choose_first(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """Lead to the page on which a moment is chosen."""
    return done(request, reverse("branch_history", args=[project_id, branch_id]))


def _page(request: ConsoleRequest, project_id: str, branch_id: str) -> str:
    """Return the page that the form came from; by default the page on which moments are chosen."""
    url = reverse("branch_history", args=[project_id, branch_id])
    query = urlencode({"moment": request.GET.get("moment", "")})
    return back(request, f"{url}?{query}")
