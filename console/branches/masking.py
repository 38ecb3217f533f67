"""Masks a copy of a branch: the page on which each column gets its mask, for a new masked branch or
for one that exists; and the download of the proof."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django import forms
from django.core.exceptions import BadRequest
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.fields import text
from console.api.parallel import in_parallel
from console.api.resources.branches import Branch, Column
from console.branches.forms import NAMED
from console.pages.problems import problems_beside
from console.pages.responses import crumbs, done, key_restriction
from console.request import ConsoleRequest

# What the field of a column offers, with what it is. It is suggested for columns that may hold text
# and whose names match: the first that does.
MASKS = (
    ("anon.fake_email()", "Made-up mail address", "mail"),
    ("anon.random_phone('+999')", "Made-up phone number", "phone|mobile|(^|_)(fax|tel)($|_)"),
    ("anon.fake_first_name()", "Made-up first name", "(first|given)_?name|forename"),
    ("anon.fake_last_name()", "Made-up last name", "(last|sur|family|user|full)_?name|^name$"),
    ("anon.fake_address()", "Made-up street and city", "street|address"),
    ("anon.fake_city()", "Made-up city", "city|town"),
    ("anon.fake_postcode()", "Made-up postal code", "zip|post_?(al_?)?code"),
    ("anon.fake_company()", "Made-up company", "company|employer"),
    ("anon.fake_iban()", "Made-up bank account number", "iban|account_?(no|number)"),
    ("anon.fake_ip()", "Made-up IP address", "(^|_)ip($|_)"),
    ("anon.random_string(16)", "Random text", "password|secret|token|api_?key|hash|salt"),
    ("anon.lorem_ipsum()", "Text without meaning", "note|comment|remark|bio|message|description"),
    ("anon.random_date()", "Random date", "$^"),
    ("anon.shuffle()", "Values of other rows", "$^"),
    ("anon.null()", "Nothing (NULL)", "$^"),
    ("anon.keep()", "Keep as it is", "$^"),
)
# The types of columns that keep their values without a rule.
PLAIN = re.compile(
    r"(?:smallint|integer|bigint|numeric|real|double precision|boolean|date|time|timestamp|interval"
    r"|uuid|money|oid|bit)\b.*"
)


@dataclass(frozen=True)
class Row:
    """A column and its mask, as the page shows and sends them."""

    column: Column
    mask: str
    # Its place, as far as the columns differ in it.
    shown: str

    @property
    def sent(self) -> str:
        return json.dumps(self.column.place)

    @property
    def is_plain(self) -> bool:
        return PLAIN.fullmatch(self.column.type) is not None


class MaskForm(forms.Form):
    name = forms.CharField(
        required=False, help_text="Leave empty for a generated name.", widget=NAMED
    )


def mask(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """For a branch that is masked itself: its rules. For any other: those of a new masked copy."""
    api = request.api
    branch, project = in_parallel(
        lambda: api.branch(project_id, branch_id), lambda: api.project(project_id)
    )
    is_masked = branch.masked_as == branch_id
    form = MaskForm(request.POST or None)
    given = dict(zip(request.POST.getlist("column"), request.POST.getlist("mask"), strict=False))
    if request.method == "POST" and form.is_valid():
        rules = [_rule(column, mask) for column, mask in given.items() if mask.strip()]
        with problems_beside(form, "name"):
            return _send(request, project_id, branch, form, rules)
    elif is_masked:
        given = {
            json.dumps([text(rule, name) for name in Column.NAMES]): text(rule, "masking_function")
            or f"= {text(rule, 'masking_value')}"
            for rule in api.branching.masking_rules(project_id, branch_id)
        }
    policy = project.settings.get("masking_policy", "refuse")
    source = branch.parent_id if is_masked else branch_id
    rows = _rows(api.branching.columns(project_id, source), given)
    context = {
        "project": project,
        "branch": branch,
        "is_masked": is_masked,
        "form": form,
        "rows": [row for row in rows if not row.is_plain],
        "plain": [row for row in rows if row.is_plain],
        "masks": MASKS,
        "policy_refuses": policy == "refuse",
        "policy": policy,
        "blocked": key_restriction(request),
        "crumbs": crumbs(request),
    }
    return render(request, "branch_mask.html", context, status=422 if form.errors else 200)


@require_safe
def attestation(request: ConsoleRequest, project_id: str, branch_id: str) -> HttpResponse:
    """The proof that the branch's data is masked, as a file."""
    content = request.api.branching.attestation(project_id, branch_id)
    return HttpResponse(
        json.dumps(content, indent=1),
        content_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{branch_id}-attestation.json"'},
    )


def _send(
    request: ConsoleRequest,
    project_id: str,
    branch: Branch,
    form: MaskForm,
    rules: list[dict[str, str]],
) -> HttpResponse:
    branching = request.api.branching
    if branch.masked_as == branch.id:
        branching.mask_again(project_id, branch.id, rules)
        url = reverse("branch", args=[project_id, branch.id])
        return done(request, url, f"Started masking {branch.name} anew.")
    named = {"name": name} if (name := form.cleaned_data["name"]) else {}
    create = {"branch": {"parent_id": branch.id, **named}, "endpoints": [{"type": "read_write"}]}
    body = {"branch_create": create, "masking_rules": rules, "start_anonymization": True}
    made = branching.create_masked(project_id, body)
    url = reverse("branch", args=[project_id, made.id])
    return done(request, url, f"Started creating masked branch {made.name}.")


def _rows(columns: Sequence[Column], given: dict[str, str]) -> list[Row]:
    """All columns that can have a mask; before anybody has chosen any, with those suggested."""
    has_one_database = len({column.place[0] for column in columns}) == 1
    rows = []
    for column in columns:
        database, schema, *within = column.place
        before = [] if has_one_database else [database]
        shown = ".".join([*before, *([] if schema == "public" else [schema]), *within])
        rows.append(Row(column, given.get(json.dumps(column.place), ""), shown))
    if given:
        return rows
    return [row if row.is_plain else replace(row, mask=_suggested(row.column)) for row in rows]


def _suggested(column: Column) -> str:
    name = column.place[-1].lower()
    return next((mask for mask, _, pattern in MASKS if re.search(pattern, name)), "")


def _rule(column: str, mask: str) -> dict[str, str]:
    """Raises BadRequest for a column that no page of ours has sent."""
    try:
        rule = dict(zip(Column.NAMES, json.loads(column), strict=True))
    except (TypeError, ValueError) as error:
        raise BadRequest("a column's place is not readable") from error
    if mask.strip().startswith("="):
        return {**rule, "masking_value": mask.strip()[1:].strip()}
    return {**rule, "masking_function": mask.strip()}
