"""Lists of a project's branches: sorted, searched and paginated."""

import base64
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from django.db.models import Q, QuerySet

from controlplane.models import Account, Branch, Project
from controlplane.operations.engine.scheduling import unfinished, unfinished_if_busy
from controlplane.services.branches import BRANCHES, with_pending
from controlplane.services.errors import Invalid
from controlplane.services.projects import find_project

SortBy = Literal["name", "created_at", "updated_at"]
SortOrder = Literal["asc", "desc"]

COLUMNS = ("name", "created_at", "updated_at")
# Converts URL-safe base64 to standard base64.
STANDARD = str.maketrans("-_", "+/")
UNKNOWN_CURSOR = (
    "invalid cursor: send the `next` of a page unchanged, with the same sorting or none"
)
# The largest number of branches on a page, and the default.
MAX_LIMIT = 10_000
# In characters: a name has up to 256, each of which takes up to 12 in JSON.
MAX_CURSOR_LENGTH = 8192


@dataclass(frozen=True, kw_only=True)
class BranchFilters:
    """Which branches a request asks for, and in which order; None for what was not sent."""

    search: str = ""
    sort_by: SortBy | None = None
    sort_order: SortOrder | None = None
    limit: int = MAX_LIMIT
    cursor: str | None = None


@dataclass(frozen=True)
class _Place:
    """A position in a sorted list, just after a branch. A cursor is this as JSON in base64."""

    branch_id: str
    sort_by: SortBy
    # The value that the branch is sorted by; a time has microseconds.
    sort_by_value: str
    sort_order: SortOrder

    @classmethod
    def behind(cls, branch: Branch, sort_by: SortBy, sort_order: SortOrder) -> "_Place":
        value = getattr(branch, sort_by)
        if isinstance(value, datetime):
            value = value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return cls(branch.id, sort_by, value, sort_order)

    @classmethod
    def read(cls, cursor: str) -> "_Place":
        """Parse a cursor. Raises Invalid if no page can have had it."""
        try:
            if len(cursor) > MAX_CURSOR_LENGTH:
                raise ValueError
            read = json.loads(base64.b64decode(cursor.translate(STANDARD), validate=True))
            place = cls(**read)
            is_ours = (
                all(_is_storable(text) for text in asdict(place).values())
                and place.sort_by in COLUMNS
                and place.sort_order in ("asc", "desc")
                and bool(place.value or place.sort_by == "name")
            )
            if not is_ours:
                raise ValueError
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Invalid(UNKNOWN_CURSOR) from error
        return place

    def as_cursor(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @property
    def value(self) -> str | datetime:
        """The value that the branch is sorted by, as a name or a time in UTC. Raises ValueError,
        OverflowError."""
        if self.sort_by == "name":
            return self.sort_by_value
        time = datetime.fromisoformat(self.sort_by_value)
        if time.tzinfo is None:
            raise ValueError("no time zone")
        return time.astimezone(UTC)

    def rest_of(self, branches: QuerySet[Branch]) -> QuerySet[Branch]:
        """Those of the branches that come after this position."""
        beyond = "gt" if self.sort_order == "asc" else "lt"
        # Beyond the value, or equal to it with an id beyond. It is written so that the condition on
        # the sorted column (the last argument) stands alone, because only then an index is used.
        return branches.filter(
            Q(**{f"{self.sort_by}__{beyond}": self.value}) | Q(**{f"id__{beyond}": self.branch_id}),
            **{f"{self.sort_by}__{beyond}e": self.value},
        )


def list_branches(account: Account, project_id: str, filters: BranchFilters) -> dict[str, Any]:
    """A page of the project's branches, by default sorted by their last change, newest first.
    Branches with the same value are sorted by their ids.

    Raises NotFound, and Invalid if the cursor is not from a list of this project with the same
    sorting.
    """
    project = find_project(account, project_id)
    place = _place_in(project, filters) if filters.cursor else None
    sort_by = filters.sort_by or (place.sort_by if place else "updated_at")
    sort_order = filters.sort_order or (place.sort_order if place else "desc")
    # One more row than the page has is read, to know whether another page follows.
    if filters == BranchFilters():
        rows = BRANCHES.rows(project=project.id, limit=MAX_LIMIT + 1)
        operations = unfinished_if_busy(rows[0]) if rows else []
    else:
        branches = _found(project, filters.search)
        if place:
            branches = place.rest_of(branches)
        sign = "" if sort_order == "asc" else "-"
        rows = list(branches.order_by(f"{sign}{sort_by}", f"{sign}id")[: filters.limit + 1])
        operations = unfinished(project.id)
    page = rows[: filters.limit]
    more = len(rows) > len(page)
    following = _Place.behind(page[-1], sort_by, sort_order).as_cursor() if more else None
    return {
        "branches": with_pending(project, page, operations),
        # `next` is the cursor of the next page; None on the last one.
        "pagination": {"next": following, "sort_by": sort_by, "sort_order": sort_order.upper()},
    }


def count_branches(account: Account, project_id: str, *, search: str = "") -> int:
    """How many branches `list_branches` would find. Raises NotFound."""
    return _found(find_project(account, project_id), search).count()


def _found(project: Project, search: str) -> QuerySet[Branch]:
    branches = Branch.objects.filter(project=project, deleted_at=None, hidden=False)
    if search:
        wanted = Q(name__icontains=search)
        # Ids are searched only for text that begins like an id: every id contains letters that
        # might be searched for in names.
        if search.startswith("br-"):
            wanted |= Q(id__startswith=search)
        branches = branches.filter(wanted)
    return branches


def _place_in(project: Project, filters: BranchFilters) -> _Place:
    """The position after which the page begins. Raises Invalid if the cursor is from another
    list."""
    place = _Place.read(filters.cursor or "")
    is_of_this_list = filters.sort_by in (None, place.sort_by) and filters.sort_order in (
        None,
        place.sort_order,
    )
    # The cursor stays valid if its branch was deleted, so that reading page by page does not break.
    known = Branch.objects.filter(project=project, id=place.branch_id)
    if not is_of_this_list or not known.exists():
        raise Invalid(UNKNOWN_CURSOR)
    return place


def _is_storable(text: Any) -> bool:
    """Whether it is text that a Postgres query may contain. Raises UnicodeError, a ValueError."""
    return isinstance(text, str) and "\0" not in text and bool(text.encode() or True)
