"""The tree of branches as a picture: a line ("limb") with a name for each branch, and on it a bird
that shows whether the branch's endpoint is active, idle or stopped.

The picture stays small however many branches there are. Only some are named, first of all those
with children. The others are drawn beside the nearest named branch that they descend from, as a
"flock" of birds and, for those without an endpoint, of buds.
"""

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.safestring import SafeString

from console.branches.rows import BranchRow
from console.pages.statuses import ENDPOINT_STATES
from console.templatetags.console_tags import address

# Up to ALL_NAMED branches, all are named. Of more branches, at most MOST_NAMED are.
ALL_NAMED = 14
MOST_NAMED = 16
# On a narrow screen, the marks of a larger flock are small.
MOST_LARGE = 60
# If not all branches are named, one without children is named if at most so many of its siblings,
# itself included, have no children either.
SMALL_FAMILY = 3
# On a wide screen, each mark of a flock up to this size is a link with its name as the tooltip.
KNOWN_BY_NAME = 40
MOST_DRAWN = 600

# Pixels.
WIDE, NARROW = 1150, 340
ROW = 42
COLUMN = 230
# The least room for a name that puts a child to the right of its parent instead of below it.
NARROWEST_COLUMN = 120
INDENT = 26
BIRD = 26
MARK = 21
SMALL_MARK = 14
LETTER = 7.4
# The symbol of a branch without an endpoint.
BUD = "bud"
MARGIN = 12


@dataclass(frozen=True)
class Perch:
    """A named branch: its limb, and what is drawn on it."""

    x: float
    y: float
    # Where the limb ends.
    end: float
    name: str
    shown_name: str
    url: str
    # The state of its endpoint, which is the name of a bird; "" without an endpoint.
    bird: str
    # Shown while the pointer rests on it.
    title: str
    is_default: bool

    @property
    def bird_x(self) -> float:
        return self.x + 2

    @property
    def bird_y(self) -> float:
        return self.y - BIRD + 5

    @property
    def name_x(self) -> float:
        return self.x + (BIRD + 6 if self.bird else 14)

    @property
    def name_y(self) -> float:
        return self.y - 7


@dataclass(frozen=True)
class Mark:
    """One branch of a flock."""

    x: float
    y: float
    size: int
    # The state of its endpoint, as `Perch.bird`, or BUD.
    look: str
    # Both are "" in a flock that is too large for names.
    title: str = ""
    url: str = ""

    @property
    def drawn(self) -> str:
        """Its HTML. A template took most of the page's time for the marks of a large project."""
        # Made of numbers and the console's own names only, so that nothing needs to be escaped.
        symbol = self.look if self.look == BUD else f"bird-{self.look}"
        place = f'x="{self.x:g}" y="{self.y:g}" width="{self.size}" height="{self.size}"'
        mark = f'<use href="#{symbol}" {place}/>'
        if not self.url:
            return mark
        title = f"<title>{html.escape(self.title)}</title>"
        return f'<a href="{html.escape(self.url)}" tabindex="-1">{title}{mark}</a>'


@dataclass(frozen=True)
class Flock:
    x: float
    y: float
    words: str
    marks: Sequence[Mark]

    @property
    def drawn(self) -> SafeString:
        """The HTML of all marks."""
        return SafeString("".join(mark.drawn for mark in self.marks))


@dataclass(frozen=True)
class Stem:
    """A line from a branch to a descendant, thinner from level to level."""

    path: str
    thickness: float


@dataclass(frozen=True)
class Picture:
    width: int
    height: float
    stems: Sequence[Stem]
    perches: Sequence[Perch]
    flocks: Sequence[Flock]


def describe(rows: Sequence[BranchRow]) -> str:
    """Describe the picture in a sentence, for users who do not see it."""
    deepest = max((row.level for row in rows), default=0)
    found = [row.endpoint.state for row in rows if row.endpoint]
    counts = [(found.count(state), state.label.lower()) for state in ENDPOINT_STATES]
    perched = [f"{count} {label}" for count, label in counts if count]
    bare = len(rows) - len(found)
    parts = [*perched, *([f"{bare} without an endpoint"] if bare else [])]
    levels = f", {deepest + 1} levels deep" if deepest else ""
    branches = "1 branch" if len(rows) == 1 else f"{len(rows)} branches"
    return f"{branches}{levels}: {', '.join(parts)}."


def draw(rows: Sequence[BranchRow], project_id: str, *, width: int) -> Picture:
    """Draw `rows`: all branches, as `branch_rows` returns them, parents before their children."""
    return _Drawing(rows, project_id, width).picture()


def _named(rows: Sequence[BranchRow]) -> set[str]:
    """Return the ids of the branches that are named. The parent of each is named too."""
    if len(rows) <= ALL_NAMED:
        return {row.branch.id for row in rows}
    leaves: dict[str, int] = defaultdict(int)
    for row in rows:
        leaves[_parent_id(row)] += not row.children
    named: set[str] = set()
    for row in sorted(rows, key=lambda row: row.level):
        parent_id = _parent_id(row)
        stands_out = row.children or row.branch.default or leaves[parent_id] <= SMALL_FAMILY
        if stands_out and (not parent_id or parent_id in named) and len(named) < MOST_NAMED:
            named.add(row.branch.id)
    return named


def _parent_id(row: BranchRow) -> str:
    return row.parent.id if row.parent else ""


class _Drawing:
    """Draws from the top down: each named branch, its named children, then its flock."""

    def __init__(self, rows: Sequence[BranchRow], project_id: str, width: int) -> None:
        self._project_id = project_id
        self._width = width
        self._stems: list[Stem] = []
        self._perches: list[Perch] = []
        self._flocks: list[Flock] = []
        self._bottom: float = 0
        named = _named(rows)
        self._children: dict[str, list[BranchRow]] = defaultdict(list)
        self._flock_of: dict[str, list[BranchRow]] = defaultdict(list)
        # The nearest named branch that each branch descends from, by id.
        beside: dict[str, str] = {}
        deepest = 0
        for row in rows:
            parent_id = _parent_id(row)
            if row.branch.id in named:
                beside[row.branch.id] = row.branch.id
                self._children[parent_id].append(row)
                deepest = max(deepest, row.level)
            else:
                beside[row.branch.id] = beside.get(parent_id, "")
                self._flock_of[beside[row.branch.id]].append(row)
        room = (width - 2 * MARGIN) / (deepest + 1)
        self._is_across = room >= NARROWEST_COLUMN
        self._step = (
            min(COLUMN, room)
            if self._is_across
            else min(INDENT, (width - 2 * MARGIN) * 0.45 / max(1, deepest))
        )

    def picture(self) -> Picture:
        for row in self._children[""]:
            self._grow(row, MARGIN, self._bottom + ROW)
        if self._flock_of[""]:
            self._gather(self._flock_of[""], MARGIN, self._bottom + ROW)
        return Picture(self._width, self._bottom + 14, self._stems, self._perches, self._flocks)

    def _grow(self, row: BranchRow, x: float, y: float) -> None:
        """Draw the branch with its limb at x, y, and all its descendants."""
        self._bottom = max(self._bottom, y)
        below = self._children[row.branch.id]
        flock = self._flock_of[row.branch.id]
        perch = self._perch(row, x, y, is_last=not (below or flock))
        self._perches.append(perch)
        thickness = max(1.5, 3.5 - 0.6 * row.level)
        self._stems.append(Stem(f"M{x:g} {y:g}H{perch.end:g}", thickness))
        child_x = x + self._step
        # The x at which the lines to the children leave this limb.
        fork = child_x - 14 if self._is_across else x + 6
        for place, child in enumerate(below):
            beside = self._is_across and place == 0
            child_y = y if beside else self._bottom + ROW
            self._stems.append(_stem(fork, y, child_x, child_y, max(1.5, thickness - 0.6)))
            self._grow(child, child_x, child_y)
        if flock:
            flock_y = self._bottom + ROW if below or not self._is_across else y
            self._stems.append(_stem(fork, y, child_x, flock_y, 1.5))
            self._gather(flock, child_x, flock_y)

    def _perch(self, row: BranchRow, x: float, y: float, *, is_last: bool) -> Perch:
        state = row.endpoint.state if row.endpoint else None
        room = self._step if self._is_across and not is_last else self._width - MARGIN - x
        taken = (BIRD if state else 8) + 16
        shown = _shortened(row.branch.name, (room - taken) / LETTER)
        end = x + taken + len(shown) * LETTER
        if self._is_across and not is_last:
            end = max(end, x + self._step - 14)
        words = state.label.lower() if state else "no endpoint"
        return Perch(
            x=x,
            y=y,
            end=round(min(end, self._width - 2), 1),
            name=row.branch.name,
            shown_name=shown,
            url=self._url(row),
            bird=state.value if state else "",
            title=f"{row.branch.name}: {words}",
            is_default=row.branch.default,
        )

    def _gather(self, flock: Sequence[BranchRow], x: float, y: float) -> None:
        """Draw the flock as rows of marks: active endpoints first, branches without one last."""
        order = {state.value: place for place, state in enumerate(ENDPOINT_STATES)}
        ordered = sorted(flock, key=lambda row: order.get(_look(row), len(order)))
        is_known = len(flock) <= KNOWN_BY_NAME and self._width == WIDE
        is_small = self._width == NARROW and len(flock) > MOST_LARGE
        size = SMALL_MARK if is_small else MARK
        a_row = max(1, int((self._width - MARGIN - x) // size))
        marks = [
            Mark(
                x=round(x + place % a_row * size, 1),
                y=y + place // a_row * (size + 3) - size + 5,
                size=size - 1,
                look=_look(row),
                title=f"{row.branch.name}: {_words(row)}" if is_known else "",
                url=self._url(row) if is_known else "",
            )
            for place, row in enumerate(ordered[:MOST_DRAWN])
        ]
        last = marks[-1].y + size + 15
        words = f"{len(flock)} more"
        if len(flock) > MOST_DRAWN:
            words += f", {MOST_DRAWN} of them drawn"
        self._flocks.append(Flock(x, last, words, marks))
        self._bottom = max(self._bottom, last)

    def _url(self, row: BranchRow) -> str:
        return address("branch", self._project_id, row.branch.id)


def _stem(fork: float, y: float, x: float, to_y: float, thickness: float) -> Stem:
    """Return the line from the parent's limb to the child's; straight if both are level."""
    if y == to_y:
        return Stem(f"M{fork:g} {y:g}H{x:g}", thickness)
    bend = min(12.0, x - fork)
    return Stem(f"M{fork:g} {y:g}V{to_y - 12:g}q0 12 {bend:g} 12H{x:g}", thickness)


def _look(row: BranchRow) -> str:
    return row.endpoint.state.value if row.endpoint else BUD


def _words(row: BranchRow) -> str:
    return row.endpoint.state.label.lower() if row.endpoint else "no endpoint"


def _shortened(name: str, letters: float) -> str:
    most = max(3, int(letters))
    return name if len(name) <= most else f"{name[: most - 1]}…"


def pictures(rows: Iterable[BranchRow], project_id: str) -> list[tuple[str, Picture]]:
    """Return a picture for wide screens and one for narrow ones, each after its CSS class."""
    found = list(rows)
    return [
        ("wide", draw(found, project_id, width=WIDE)),
        ("narrow", draw(found, project_id, width=NARROW)),
    ]
