"""Compares a branch's schema with another branch's, by default its parent's, as a diff."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.api_errors import APIError, NotFound, Unauthorized
from console.api_results import Branch
from console.branch_forms import ComparisonForm
from console.parts import part
from console.request import ConsoleRequest
from console.schema_diff import read_diff
from console.side_by_side import side_by_side


@require_safe
def compare(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    api = request.api
    project, branches, databases = side_by_side(
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        part(lambda: api.databases(project_id, branch_id)),
    )
    branch = next((one for one in branches if one.id == branch_id), None)
    if branch is None:
        raise NotFound("branch not found", status=404)
    others = [one for one in branches if one.id != branch_id]
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
            diff = api.branching.schema_difference(
                project_id, branch_id, base_id=base_id, database=database
            )
            context["difference"] = read_diff(diff)
        except Unauthorized:
            raise
        except APIError as problem:
            # The page is still shown, so that another database or branch can be chosen.
            context["problem"] = problem
    return render(request, "branch_schema.html", context)


def _usual_base(branch: Branch, others: list[Branch]) -> str:
    """Return the id of the parent or, without one, of the default branch if that is another."""
    known = [one.id for one in others]
    if branch.parent_id in known:
        return branch.parent_id
    return next((one.id for one in others if one.default), next(iter(known), ""))
