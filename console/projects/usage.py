"""What a project and its branches have used in the present period, with the project's quotas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from console.api.fields import inner, number
from console.api.resources.branches import Branch
from console.api.resources.projects import Project, Usage
from console.operations.timescale import percent
from console.pages.listing import by_name
from console.templatetags.console_tags import NOTHING, duration, size

MINUTE, HOUR, GB = 60, 3600, 10**9


@dataclass(frozen=True)
class Quota:
    """Something that a project uses, and may have a quota of."""

    # The API's name of the quota.
    name: str
    label: str
    # Returns what the project used of it, in the API's unit; None if the server does not say.
    used: Callable[[Project], int | None]
    # Returns the same of a branch.
    used_by: Callable[[Branch], int | None]
    # The API's units that one of the form's has.
    scale: int

    @property
    def unit(self) -> str:
        return "hours" if self.scale == HOUR else "GB"

    def words(self, amount: int | None) -> str:
        if amount is None:
            return NOTHING
        if self.scale != HOUR:
            return size(amount)
        if amount >= HOUR:
            return f"{amount / HOUR:,.3g} h"
        return f"{amount} s" if amount < MINUTE else duration(amount * 1000)


def _consumed(name: str, label: str, of: Callable[[Usage], int | None], scale: int = GB) -> Quota:
    return Quota(name, label, lambda one: of(one.usage), lambda one: of(one.usage), scale)


QUOTAS = (
    _consumed("active_time_seconds", "Active time", lambda used: used.active_time, HOUR),
    _consumed("compute_time_seconds", "Compute time", lambda used: used.compute_time, HOUR),
    _consumed("written_data_bytes", "Written data", lambda used: used.written),
    _consumed("data_transfer_bytes", "Data transfer", lambda used: used.transferred),
    # It limits each branch, so the project has no use of its own.
    Quota("logical_size_bytes", "Size", lambda _: None, lambda one: one.logical_size, GB),
)


@dataclass(frozen=True)
class Used:
    """One amount that was used. `share` of the limit, or of the largest amount, is in percent for
    SVG; "" without one."""

    label: str
    words: str
    limit: str
    share: str
    # Whether a quota is used up, so that no endpoint starts.
    is_used_up: bool = False


def project_usage(project: Project, branches: Sequence[Branch]) -> list[Used]:
    """Return what the project used of each quota, as far as the server says. For the size, that is
    the largest branch's."""
    found = []
    limits = inner(project.settings, "quota")
    for one in QUOTAS:
        limit = int(number(limits, one.name))
        used = one.used(project)
        label = one.label
        if one.name == "logical_size_bytes":
            used = max((b.logical_size for b in branches if b.logical_size), default=None)
            label = "Largest branch"
        if used is not None:
            words = one.words(limit) if limit > 0 else ""
            is_used_up = 0 < limit <= used
            found.append(Used(label, one.words(used), words, _share(used, limit), is_used_up))
    return found


def branch_usages(branches: Sequence[Branch]) -> list[tuple[Branch, list[Used]]]:
    """Return what each branch used, by their names."""
    most = {one.name: max((one.used_by(b) or 0 for b in branches), default=0) for one in QUOTAS}
    return [
        (
            branch,
            [
                Used(
                    one.label,
                    one.words(used := one.used_by(branch)),
                    "",
                    "" if used is None else _share(used, most[one.name]),
                )
                for one in QUOTAS
            ],
        )
        for branch in sorted(branches, key=lambda branch: by_name(branch.name))
        if any(one.used_by(branch) for one in QUOTAS)
    ]


def _share(used: int, most: int) -> str:
    return percent(min(100 * used / most, 100)) if most > 0 else ""
