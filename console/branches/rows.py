"""The branches of a project as rows of a tree: each with its endpoint and its place in the tree."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from console.api.resources.branches import Branch
from console.endpoints.rows import EndpointRow
from console.pages.listing import by_name, by_time
from console.pages.statuses import Status, branch_word

# Pixels: the width of one level, and the most for all levels. On a phone, more would leave too
# little room for the name.
LEVEL_WIDTH = 20
MAX_TREE_WIDTH = 120
# Levels that are drawn. The level of a branch further down is shown as text.
MAX_DRAWN_DEPTH = 30


@dataclass(frozen=True)
class TreeLines:
    """The lines that the tree draws before a branch, in a box 40 high."""

    # As SVG path data.
    path: str
    width: float


class BranchCells(NamedTuple):
    """What the list shows of a branch, but for its times: the key by which a rendered row is
    kept."""

    id: str
    name: str
    is_default: bool
    is_protected: bool
    is_masked: bool
    # 0 if it is drawn.
    level: int
    pending: str
    was_not_created: bool
    parent_id: str
    parent_name: str
    lines: TreeLines | None
    size: int | None
    endpoint_id: str
    state: Status | None
    endpoint_pending: str
    failed_start_id: str


@dataclass(frozen=True)
class BranchRow:
    branch: Branch
    pending: str
    endpoint: EndpointRow | None
    # None for a root, or if the parent is not in the list.
    parent: Branch | None
    children: int
    # The number of its ancestors.
    level: int
    # For each level that is drawn, from the outermost to the branch's own: whether a later sibling
    # follows at that level.
    goes_on: Sequence[bool] = field(default=())
    # None for a root, and without a tree.
    tree_lines: TreeLines | None = None

    @property
    def was_not_created(self) -> bool:
        """Whether its creation was cancelled or has failed."""
        return self.branch.current_state == "init" and not self.branch.pending_state

    @property
    def stays_because(self) -> str:
        """Why it cannot be deleted now; "" if it can."""
        if self.branch.default:
            return "Can't delete: default branch"
        if self.branch.protected:
            return "Can't delete: protected"
        return "Can't delete: has child branches" if self.children else ""

    @cached_property
    def cells(self) -> BranchCells:
        branch, row = self.branch, self.endpoint
        return BranchCells(
            id=branch.id,
            name=branch.name,
            is_default=branch.default,
            is_protected=branch.protected,
            is_masked=branch.masked_as == branch.id,
            level=self.level if self.level > MAX_DRAWN_DEPTH else 0,
            pending=self.pending,
            was_not_created=self.was_not_created,
            parent_id=self.parent.id if self.parent else "",
            parent_name=self.parent.name if self.parent else "",
            lines=self.tree_lines,
            size=branch.logical_size,
            endpoint_id=row.endpoint.id if row else "",
            state=row.state if row else None,
            endpoint_pending=row.pending if row else "",
            failed_start_id=row.failed_start.id if row and row.failed_start else "",
        )


def branch_rows(branches: Sequence[Branch], endpoints: Iterable[EndpointRow]) -> list[BranchRow]:
    """Return all branches, without the tree's lines. Each parent comes before its children, and
    older children come before younger ones."""
    known = {branch.id: branch for branch in branches}
    by_branch = {row.endpoint.branch_id: row for row in endpoints}
    children: dict[str, list[Branch]] = defaultdict(list)
    for branch in sorted(known.values(), key=lambda b: (by_time(b.created_at), by_name(b.name))):
        # A branch whose parent is not in the list is drawn as a root.
        children[branch.parent_id if branch.parent_id in known else ""].append(branch)

    rows: dict[str, BranchRow] = {}

    def grow(root: Branch) -> None:
        pending: list[tuple[Branch, int, tuple[bool, ...]]] = [(root, 0, ())]
        while pending:
            branch, level, goes_on = pending.pop()
            if branch.id in rows:
                continue
            below = children[branch.id]
            rows[branch.id] = BranchRow(
                branch=branch,
                pending=branch_word(branch),
                endpoint=by_branch.get(branch.id),
                parent=known.get(branch.parent_id) if level else None,
                children=len(below),
                level=level,
                goes_on=goes_on,
            )
            for place, child in enumerate(reversed(below)):
                pending.append((child, level + 1, (*goes_on, place > 0)[-MAX_DRAWN_DEPTH:]))

    for branch in children[""]:
        grow(branch)
    # Branches that are each other's ancestors. Only a faulty server returns such.
    for branch in known.values():
        grow(branch)
    return list(rows.values())


def with_tree_lines(rows: Sequence[BranchRow]) -> list[BranchRow]:
    """Return the rows of one page with the tree's lines, as narrow as the deepest row requires."""
    deepest = max((len(row.goes_on) for row in rows), default=0)
    step = min(LEVEL_WIDTH, MAX_TREE_WIDTH / deepest) if deepest else LEVEL_WIDTH
    return [replace(row, tree_lines=_tree_lines(row.goes_on, step)) for row in rows]


def _tree_lines(goes_on: Sequence[bool], step: float) -> TreeLines | None:
    if not goes_on:
        return None
    xs = [round(place * step + step * 0.4, 1) for place in range(len(goes_on))]
    own, reach = xs[-1], round(step / 2, 1)
    down = "".join(f"M{x} 0V40" for x, on in zip(xs, goes_on, strict=True) if on)
    branch = f"M{own} 20h{reach}" if goes_on[-1] else f"M{own} 0V20h{reach}"
    return TreeLines(path=down + branch, width=round(own + reach + 2, 1))
