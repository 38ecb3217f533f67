"""The tree of branches as a picture: a line ("limb") with a name for each branch, and on it a bird
that shows whether the branch's endpoint is active, idle or stopped.

The picture stays small however many branches there are. Only some are named, first of all those
with children. The others are drawn beside the nearest named branch that they descend from, as a
"flock" of birds and, for those without an endpoint, of buds.

It is made of `Drawn` alone, by which it is kept: the page renews it every few seconds, and most
renewals change nothing."""

import html
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from django.conf import settings
from django.template.loader import render_to_string
from django.urls import get_script_prefix
from django.utils.safestring import SafeString

from console.branches.rows import BranchRow
from console.pages.statuses import ENDPOINT_STATES
from console.templatetags.console_tags import address

# Up to ALL_NAMED branches, all are named. Of more branches, at most MAX_NAMED are.
ALL_NAMED = 14
MAX_NAMED = 16
# On a narrow screen, the marks of a larger flock are small.
MAX_LARGE = 60
# If not all branches are named, one without children is named if at most so many of its siblings,
# itself included, have no children either.
SMALL_FAMILY = 3
# On a wide screen, each mark of a flock up to this size is a link with its name as the tooltip.
KNOWN_BY_NAME = 40
MAX_DRAWN = 600

# Pixels.
WIDE, NARROW = 1150, 340
ROW = 42
COLUMN = 230
# The least room for a name that puts a child to the right of its parent instead of below it.
MIN_COLUMN = 120
INDENT = 26
BIRD = 26
MARK = 21
SMALL_MARK = 14
LETTER = 7.4
# The symbol of a branch without an endpoint.
BUD = "bud"
MARGIN = 12
# The pictures that a process keeps. One of 600 branches has 100 kB.
KEPT = 64


class Drawn(NamedTuple):
    id: str
    name: str
    is_default: bool
    # "" for a root, or if the parent is not in the list.
    parent_id: str
    level: int
    has_children: bool
    # The state of its endpoint, which is the name of a bird; BUD without an endpoint.
    look: str
    words: str

    @classmethod
    def of(cls, row: BranchRow) -> "Drawn":
        branch, state = row.branch, row.endpoint.state if row.endpoint else None
        return cls(
            id=branch.id,
            # SVG has no `bdi`.
            name=f"{branch.name}",
            is_default=branch.default,
            parent_id=row.parent.id if row.parent else "",
            level=row.level,
            has_children=bool(row.children),
            look=state.value if state else BUD,
            words=state.label.lower() if state else "no endpoint",
        )

    @property
    def title(self) -> str:
        return f"{self.name}: {self.words}"


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


def picture(rows: Sequence[BranchRow], project_id: str) -> SafeString:
    """Return the picture as HTML: one for wide screens and one for narrow ones, with the sentence
    that describes them. `rows` are all branches, as `branch_rows` returns them."""
    render = _render.__wrapped__ if settings.DEBUG else _render
    return render(get_script_prefix(), project_id, tuple(map(Drawn.of, rows)))


@lru_cache(maxsize=KEPT)
def _render(prefix: str, project_id: str, branches: tuple[Drawn, ...]) -> SafeString:
    pictures = [
        (look, draw(branches, project_id, width=width))
        for look, width in (("wide", WIDE), ("narrow", NARROW))
    ]
    context = {"pictures": pictures, "words": describe(branches)}
    return render_to_string("_branches_picture.html", context)


def describe(branches: Sequence[Drawn]) -> str:
    """Describe the picture in a sentence, for users who do not see it."""
    deepest = max((branch.level for branch in branches), default=0)
    looks = [branch.look for branch in branches]
    counts = [
        *((looks.count(state.value), state.label.lower()) for state in ENDPOINT_STATES),
        (looks.count(BUD), "without an endpoint"),
    ]
    parts = ", ".join(f"{count} {label}" for count, label in counts if count)
    levels = f", {deepest + 1} levels deep" if deepest else ""
    total = "1 branch" if len(branches) == 1 else f"{len(branches)} branches"
    return f"{total}{levels}: {parts}."


def draw(branches: Sequence[Drawn], project_id: str, *, width: int) -> Picture:
    """Draw all branches, parents before their children."""
    return _Drawing(branches, project_id, width).picture()


def _ids_to_name(branches: Sequence[Drawn]) -> set[str]:
    """Return the ids of the branches that are named. The parent of each is named too."""
    if len(branches) <= ALL_NAMED:
        return {branch.id for branch in branches}
    leaves: dict[str, int] = defaultdict(int)
    for branch in branches:
        leaves[branch.parent_id] += not branch.has_children
    named: set[str] = set()
    for branch in sorted(branches, key=lambda branch: branch.level):
        parent_id = branch.parent_id
        stands_out = branch.has_children or branch.is_default or leaves[parent_id] <= SMALL_FAMILY
        if stands_out and (not parent_id or parent_id in named) and len(named) < MAX_NAMED:
            named.add(branch.id)
    return named


class _Drawing:
    """Draws from the top down: each named branch, its named children, then its flock."""

    def __init__(self, branches: Sequence[Drawn], project_id: str, width: int) -> None:
        self._project_id = project_id
        self._width = width
        self._stems: list[Stem] = []
        self._perches: list[Perch] = []
        self._flocks: list[Flock] = []
        self._bottom: float = 0
        named = _ids_to_name(branches)
        self._children: dict[str, list[Drawn]] = defaultdict(list)
        self._flock_of: dict[str, list[Drawn]] = defaultdict(list)
        # The nearest named branch that each branch descends from, by id.
        beside: dict[str, str] = {}
        deepest = 0
        for branch in branches:
            if branch.id in named:
                beside[branch.id] = branch.id
                self._children[branch.parent_id].append(branch)
                deepest = max(deepest, branch.level)
            else:
                beside[branch.id] = beside.get(branch.parent_id, "")
                self._flock_of[beside[branch.id]].append(branch)
        room = (width - 2 * MARGIN) / (deepest + 1)
        self._is_across = room >= MIN_COLUMN
        self._step = (
            min(COLUMN, room)
            if self._is_across
            else min(INDENT, (width - 2 * MARGIN) * 0.45 / max(1, deepest))
        )

    def picture(self) -> Picture:
        for branch in self._children[""]:
            self._grow(branch, MARGIN, self._bottom + ROW)
        if self._flock_of[""]:
            self._gather(self._flock_of[""], MARGIN, self._bottom + ROW)
        return Picture(self._width, self._bottom + 14, self._stems, self._perches, self._flocks)

    def _grow(self, branch: Drawn, x: float, y: float) -> None:
        """Draw the branch with its limb at x, y, and all its descendants."""
        self._bottom = max(self._bottom, y)
        below = self._children[branch.id]
        flock = self._flock_of[branch.id]
        perch = self._perch(branch, x, y, is_last=not (below or flock))
        self._perches.append(perch)
        thickness = max(1.5, 3.5 - 0.6 * branch.level)
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

    def _perch(self, branch: Drawn, x: float, y: float, *, is_last: bool) -> Perch:
        bird = "" if branch.look == BUD else branch.look
        room = self._step if self._is_across and not is_last else self._width - MARGIN - x
        taken = (BIRD if bird else 8) + 16
        shown = _shortened(branch.name, (room - taken) / LETTER)
        end = x + taken + len(shown) * LETTER
        if self._is_across and not is_last:
            end = max(end, x + self._step - 14)
        return Perch(
            x=x,
            y=y,
            end=round(min(end, self._width - 2), 1),
            name=branch.name,
            shown_name=shown,
            url=self._url(branch),
            bird=bird,
            title=branch.title,
            is_default=branch.is_default,
        )

    def _gather(self, flock: Sequence[Drawn], x: float, y: float) -> None:
        """Draw the flock as rows of marks: active endpoints first, branches without one last."""
        order = {state.value: place for place, state in enumerate(ENDPOINT_STATES)}
        ordered = sorted(flock, key=lambda branch: order.get(branch.look, len(order)))
        is_known = len(flock) <= KNOWN_BY_NAME and self._width == WIDE
        is_small = self._width == NARROW and len(flock) > MAX_LARGE
        size = SMALL_MARK if is_small else MARK
        a_row = max(1, int((self._width - MARGIN - x) // size))
        marks = [
            Mark(
                x=round(x + place % a_row * size, 1),
                y=y + place // a_row * (size + 3) - size + 5,
                size=size - 1,
                look=branch.look,
                title=branch.title if is_known else "",
                url=self._url(branch) if is_known else "",
            )
            for place, branch in enumerate(ordered[:MAX_DRAWN])
        ]
        last = marks[-1].y + size + 15
        words = f"{len(flock)} more"
        if len(flock) > MAX_DRAWN:
            words += f", {MAX_DRAWN} of them drawn"
        self._flocks.append(Flock(x, last, words, marks))
        self._bottom = max(self._bottom, last)

    def _url(self, branch: Drawn) -> str:
        return address("branch", self._project_id, branch.id)


def _stem(fork: float, y: float, x: float, to_y: float, thickness: float) -> Stem:
    """Return the line from the parent's limb to the child's; straight if both are level."""
    if y == to_y:
        return Stem(f"M{fork:g} {y:g}H{x:g}", thickness)
    bend = min(12.0, x - fork)
    return Stem(f"M{fork:g} {y:g}V{to_y - 12:g}q0 12 {bend:g} 12H{x:g}", thickness)


def _shortened(name: str, letters: float) -> str:
    most = max(3, int(letters))
    return name if len(name) <= most else f"{name[: most - 1]}…"
