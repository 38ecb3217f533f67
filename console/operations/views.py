"""The list of a project's runs, with the timeline of the last hours."""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from django.urls import reverse

from console.api.fields import Page
from console.api.management_api import ManagementAPI
from console.api.parallel import each_or_none, in_parallel, or_none
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Operation, actor_choices
from console.forms.fields import FilterForm, OpenChoiceField
from console.operations.run_rows import RunRow
from console.operations.runs import Run, runs_of
from console.operations.timeline import hours_asked, operations_since, timeline_of
from console.operations.waterfall import warning_of
from console.pages.live_regions import Shown, page_and_region, polling
from console.pages.statuses import ACTIONS, OPERATION_STATUSES, lasting_words
from console.request import ConsoleRequest


class OperationFilters(FilterForm):
    action = OpenChoiceField(required=False)
    status = OpenChoiceField(required=False)
    endpoint_id = OpenChoiceField(label="Endpoint", required=False)
    branch_id = OpenChoiceField(label="Branch", required=False)
    initiator = OpenChoiceField(label="Started by", required=False)
    field_order = ("action", "status", "endpoint_id", "branch_id", "initiator", "since", "until")

    def offer_all(self, branches: Iterable[Branch], endpoints: Iterable[Endpoint]) -> None:
        self.offer("action", ((value, name) for value, (name, _) in ACTIONS.items()))
        self.offer("status", _statuses())
        self.offer("endpoint_id", ((one.id, one.id) for one in endpoints))
        self.offer("branch_id", ((one.id, one.name) for one in branches))
        self.offer("initiator", actor_choices())


def _statuses() -> list[tuple[str, str]]:
    """Return the choices: two that combine statuses by commas, and then each status."""
    own = [status for status in OPERATION_STATUSES.values() if not status.is_foreign]
    unfinished = ",".join(status.value for status in own if not status.terminal)
    return [
        (unfinished, "Unfinished"),
        ("failed,cancelled", "Failed or cancelled"),
        *((status.value, status.label) for status in own),
    ]


PAGE_SIZE = 25
MAX_STEPS_CALLS = 3


def _list(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    cursor = request.GET.get("cursor", "")
    filters = OperationFilters(request.GET)
    filters.full_clean()
    hours = hours_asked(request.GET.get("hours", ""))
    has_timeline = not (cursor or filters.chosen)
    page, branches, project, endpoints, latest = in_parallel(
        lambda: api.operations(
            project_id,
            limit=PAGE_SIZE,
            cursor=cursor,
            whole_chains="true",
            **filters.chosen,
        ),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
        # The list can do without these.
        or_none(lambda: api.endpoints(project_id)),
        or_none(lambda: operations_since(api, project_id, hours) if has_timeline else ()),
    )
    filters.offer_all(branches, endpoints or ())
    can_filter = _can_filter(page, filters)
    runs = runs_of(page.items)
    warnings = _warnings(api, project_id, runs)
    is_filtered = can_filter and bool(filters.chosen)
    context = {
        "project": project,
        "runs": [RunRow(project_id, run, warnings.get(run.id, "")) for run in runs],
        "older_query": urlencode(filters.chosen | {"cursor": page.cursor}) if page.cursor else "",
        "is_first_page": not cursor,
        "filters": filters,
        "can_filter": can_filter,
        "is_filtered": is_filtered,
        "filter_query": filters.query,
        "timeline": latest and timeline_of(project, latest, hours, branches, endpoints),
        "timeline_url": reverse("operations", args=[project_id]),
    }
    query = {**filters.chosen, **({"cursor": cursor} if cursor else {})}
    query |= {"hours": str(hours)} if "hours" in request.GET else {}
    return context, polling(request, page.items, urlencode(query))


index = page_and_region(_list, "operations.html", "_runs_list.html")


def _can_filter(page: Page[Operation], filters: OperationFilters) -> bool:
    """Whether the server filters operations: if it ignores filters, none may seem to be in use."""
    if page.items:
        return page.items[0].can_be_steered
    return filters.is_in_use


def _warnings(api: ManagementAPI, project_id: str, runs: Sequence[Run]) -> Mapping[str, str]:
    """Return what is wrong with runs that last long although nothing has failed, by the run's id:
    their present steps tell it. What cannot be read is left out."""
    lasting = [
        (run.id, run.under_way[0].id)
        for run in runs
        if run.chain_id and run.under_way and lasting_words(run.under_way[0])
    ][:MAX_STEPS_CALLS]
    read = each_or_none(lambda one: api.operation(project_id, one[1]), lasting)
    return {run_id: warning_of(one) for (run_id, _), one in zip(lasting, read, strict=True) if one}
