"""Compares a branch's schema with another branch's, by default its parent's, as a diff."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from django.forms import ValidationError
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api.errors import Failure, NotFound
from console.api.parallel import in_parallel, part
from console.api.resources.branches import Branch
from console.branches.forms import ComparisonForm
from console.branches.moments import FIELD, moment_message, read_moment
from console.request import ConsoleRequest
from console.turns import in_turns

# The most lines shown, and read, and characters of a line. Of more, only the beginning is shown.
MAX_LINES, MAX_LINES_READ, MAX_LINE_LENGTH = 2000, 100_000, 1000
HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True)
class Line:
    # "added", "removed", "same", or "hunk" where equal lines were left out.
    kind: str
    text: str
    # Its line number in the base's schema and in the branch's; None if it is not in that one.
    base_number: int | None = None
    own_number: int | None = None

    @property
    def sign(self) -> str:
        return {"added": "+", "removed": "\N{MINUS SIGN}"}.get(self.kind, "")


@dataclass(frozen=True)
class Difference:
    lines: Sequence[Line]
    added: int
    removed: int
    left_out: int


def read_diff(diff: str) -> Difference:
    """Read a diff. Text that is no diff has no lines."""
    lines: list[Line] = []
    base = own = 0
    is_in_hunk = False
    for whole in in_turns(diff.removesuffix("\n").split("\n", MAX_LINES_READ)[:MAX_LINES_READ]):
        text = whole if len(whole) <= MAX_LINE_LENGTH else f"{whole[:MAX_LINE_LENGTH]}…"
        if hunk := HUNK.match(text):
            base, own = int(hunk[1]), int(hunk[2])
            is_in_hunk = True
            lines.append(Line("hunk", text[hunk.end() :].strip()))
        elif not is_in_hunk:
            continue
        elif text.startswith("+"):
            lines.append(Line("added", text[1:], own_number=own))
            own += 1
        elif text.startswith("-"):
            lines.append(Line("removed", text[1:], base_number=base))
            base += 1
        elif not text.startswith("\\"):
            lines.append(Line("same", text[1:], base, own))
            base, own = base + 1, own + 1
    return Difference(
        lines=lines[:MAX_LINES],
        added=sum(line.kind == "added" for line in lines),
        removed=sum(line.kind == "removed" for line in lines),
        left_out=max(0, len(lines) - MAX_LINES),
    )


@require_safe
def compare(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    api = request.api
    project, branches, databases = in_parallel(
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        part(lambda: api.catalog.databases(project_id, branch_id)),
    )
    branch = next((one for one in branches if one.id == branch_id), None)
    if branch is None:
        raise NotFound("branch not found", status=404)
    # With its own past, a branch can be compared too.
    others = [one for one in branches if one.id != branch_id or request.GET.get("moment")]
    names = [database.name for database in databases.items]
    form = ComparisonForm(
        request.GET, branches=others, databases=names, base_id=_usual_base(branch, others)
    )
    form.is_valid()
    base_id, database = form.cleaned_data["base"], form.cleaned_data["database"]
    context = {
        "project": project,
        "branch": branch,
        "form": form,
        "base": next((one for one in others if one.id == base_id), None),
        "database": database,
        "problem": databases.problem,
    }
    if base_id and database:
        try:
            typed = form.cleaned_data["moment"]
            diff = api.branching.schema_difference(
                project_id,
                branch_id,
                base_id=base_id,
                database=database,
                base_moment=read_moment(typed) if typed else None,
            )
            context["difference"] = read_diff(diff)
        except ValidationError as error:
            form.add_error("moment", error)
        except Failure as problem:
            # The page is still shown, so that another database or branch can be chosen.
            if FIELD.match(problem.message):
                form.add_error("moment", moment_message(f"{problem.message}."))
            else:
                context["problem"] = problem
    return render(request, "branch_schema.html", context)


def _usual_base(branch: Branch, others: list[Branch]) -> str:
    """Return the id of the parent or, without one, of the default branch if that is another."""
    known = [one.id for one in others]
    if branch.parent_id in known:
        return branch.parent_id
    return next((one.id for one in others if one.default), next(iter(known), ""))
