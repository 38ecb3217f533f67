"""The pages of events: who did what, in one project or in the whole account."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.urls import reverse

from console.api.errors import APIError, NotFound
from console.api.fields import Page
from console.api.management_api import ManagementAPI
from console.api.parallel import each_or_none, in_parallel, or_none
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Event, actor_choices
from console.events.rows import Known, event_rows
from console.events.things import days, things_of_page
from console.events.types import type_choices
from console.forms.fields import ANY, Choices, FilterForm, OpenChoiceField
from console.pages.addresses import NOT_READ, Existing
from console.pages.live_regions import Polling, Shown, page_and_region
from console.request import ConsoleRequest


class EventFilters(FilterForm):
    type = OpenChoiceField(required=False)
    actor = OpenChoiceField(label="By", required=False)
    endpoint_id = OpenChoiceField(label="Endpoint", required=False)
    branch_id = OpenChoiceField(label="Branch", required=False)
    field_order = ("type", "actor", "endpoint_id", "branch_id", "since", "until")

    def offer_all(
        self, branches: Iterable[Branch] | None = None, endpoints: Iterable[Endpoint] | None = None
    ) -> None:
        """Offer the choices. For a whole account, branches and endpoints are too many to offer."""
        self._offer_or_drop("endpoint_id", [(one.id, one.id) for one in endpoints or ()])
        self._offer_or_drop("branch_id", [(one.id, one.name) for one in branches or ()])
        self.offer("actor", actor_choices())
        groups = type_choices()
        known = [value for _, choices in groups for value, _ in choices]
        chosen = self.data.get("type", "")
        kept = [(chosen, chosen)] if chosen and chosen not in known else []
        cast(forms.ChoiceField, self.fields["type"]).choices = Choices([ANY, *kept, *groups])

    def _offer_or_drop(self, name: str, choices: Sequence[tuple[str, str]]) -> None:
        if choices or self.data.get(name):
            self.offer(name, choices)
        else:
            del self.fields[name]


# One thing that happened has up to about four events.
PAGE_SIZE = 100
# A thing whose events continue on the next page is completed from so many events of that.
FOLLOWING_PAGE_SIZE = 20
# On an account's page, the most projects for which the console reads what still exists in them.
MAX_CHECKED = 8
# The most projects that are read for their names.
MAX_NAMED = 100


def _of_account(request: ConsoleRequest) -> Shown:
    filters = EventFilters(request.GET)
    filters.full_clean()
    read, projects = in_parallel(
        lambda: _page(request, filters),
        or_none(lambda: request.api.projects(limit=MAX_NAMED).items),
    )
    filters.offer_all()
    known, names = _known(request.api, [*read[0].items, *read[1]])
    names |= {project.id: project.name for project in projects or ()}
    context = _context(request, filters, read, known, names, with_project=True)
    context["page_url"] = reverse("account_activity")
    return context, _polling(request, filters)


def _of_project(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    filters = EventFilters(request.GET)
    filters.full_clean()
    # The project is the first call, so that its error is the one raised if it does not exist.
    project, read, endpoints, branches = in_parallel(
        lambda: api.project(project_id),
        lambda: _page(request, filters, project_id),
        # Only for links and filters, so that the page can do without.
        or_none(lambda: api.endpoints(project_id)),
        or_none(lambda: api.branches(project_id)),
    )
    filters.offer_all(branches, endpoints)
    known = {project_id: Existing.of(endpoints, branches)}
    names = {branch.id: branch.name for branch in branches or ()}
    context = _context(request, filters, read, known, names, with_project=False)
    context |= {"project": project, "page_url": reverse("project_activity", args=[project_id])}
    return context, _polling(request, filters)


# A page, and the beginning of the next one.
_Read = tuple[Page[Event], Sequence[Event]]


def _page(request: ConsoleRequest, filters: EventFilters, project_id: str = "") -> _Read:
    def events(cursor: str, limit: int) -> Page[Event]:
        return request.api.events(project_id, limit=limit, cursor=cursor, **filters.chosen)

    page = events(request.GET.get("cursor", ""), PAGE_SIZE)
    # The page before this one has shown these already.
    shown = request.GET.get("shown", "").split(",")
    page = replace(page, items=[event for event in page.items if event.id not in shown])
    following = or_none(lambda: events(page.cursor, FOLLOWING_PAGE_SIZE))() if page.cursor else None
    return page, following.items if following else ()


def _known(api: ManagementAPI, events: Iterable[Event]) -> tuple[Known, dict[str, str]]:
    """Read what still exists in the events' projects, so that no link leads to a deleted thing, and
    the names of the branches."""
    projects = list(dict.fromkeys(event.project_id for event in events if event.project_id))
    read = each_or_none(lambda project_id: _existing(api, project_id), projects[:MAX_CHECKED])
    found = [(project_id, one) for project_id, one in zip(projects, read, strict=False) if one]
    names: dict[str, str] = {}
    for _, (_, of_project) in found:
        names |= of_project
    return {project_id: existing for project_id, (existing, _) in found}, names


def _existing(api: ManagementAPI, project_id: str) -> tuple[Existing | None, dict[str, str]]:
    """Return what exists in the project, None if it is deleted; and its branches' names."""
    try:
        endpoints, branches = in_parallel(
            lambda: api.endpoints(project_id), or_none(lambda: api.branches(project_id))
        )
    except NotFound:
        return None, {}
    except APIError:
        return NOT_READ, {}
    return Existing.of(endpoints, branches), {one.id: one.name for one in branches or ()}


def _context(
    request: ConsoleRequest,
    filters: EventFilters,
    read: _Read,
    known: Known,
    names: Mapping[str, str],
    *,
    with_project: bool,
) -> dict[str, Any]:
    page, following = (
        event_rows(events, known, names, with_project=with_project)
        for events in (read[0].items, read[1])
    )
    found, taken = things_of_page(page, following)
    cursor = read[0].cursor
    older = filters.chosen | {"cursor": cursor} | ({"shown": ",".join(taken)} if taken else {})
    return {
        "filters": filters,
        "days": days(found),
        "older_query": urlencode(older) if cursor else "",
        "is_first_page": not request.GET.get("cursor"),
        "is_filtered": bool(filters.chosen),
        "filter_query": filters.query,
    }


def _polling(request: ConsoleRequest, filters: EventFilters) -> Polling:
    place = {name: request.GET[name] for name in ("cursor", "shown") if request.GET.get(name)}
    return Polling(urlencode(filters.chosen | place))


of_account = page_and_region(_of_account, "activity.html", "_activity.html")
of_project = page_and_region(_of_project, "activity.html", "_activity.html")
