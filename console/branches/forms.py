"""The forms about branches and what is on them: roles, databases, snapshots."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.utils.safestring import SafeString
from django.utils.timezone import localtime

from console.api.resources.branches import Branch, Database
from console.forms.fields import (
    PLAIN,
    LifetimeFields,
    OpenChoiceField,
    branch_in_list,
    in_zone,
    offer,
    offer_branches,
)
from console.forms.losses import listed
from console.templatetags.console_tags import to_the_millisecond


class MomentShown(forms.TextInput):
    """Shows a moment, which cannot be changed, as people read it. What is sent is exact."""

    def __init__(self, at: datetime, exact: str) -> None:
        super().__init__()
        self.at, self.exact = at, exact

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        shown = forms.TextInput({"readonly": True, "title": self.exact, **PLAIN, **(attrs or {})})
        sent = forms.HiddenInput().render(name, self.exact)
        return shown.render("", to_the_millisecond(self.at)) + sent


# The choice of the moment that leads to the page on which a past one is chosen.
PAST = "past"
NAMED = forms.TextInput(attrs={**PLAIN, "autofocus": True})


class NewBranchForm(LifetimeFields):
    name = forms.CharField(
        required=False, help_text="Leave empty for a generated name.", widget=NAMED
    )
    field_order: Sequence[str] = ("name", "lifetime", "until")


class BranchForm(NewBranchForm):
    parent_id = OpenChoiceField(label="Parent", required=False)
    # Offered by servers that keep the history of branches.
    as_of = forms.ChoiceField(
        label="As of",
        required=False,
        choices=[("", "Now"), (PAST, "A moment in the past…")],
        help_text="A past moment is chosen on the next page.",
    )
    with_endpoint = forms.BooleanField(
        label="Create endpoint",
        required=False,
        initial=True,
        help_text="Clients connect to a branch through its endpoint.",
    )
    schema_only = forms.BooleanField(
        label="Schema only",
        required=False,
        help_text="Copies roles, databases and tables, but no rows. The branch then has no parent.",
    )
    protected = forms.BooleanField(
        label="Protected",
        required=False,
        help_text="A protected branch can be neither deleted nor reset, does not expire, and keeps "
        "its project from being deleted. Child branches get new passwords.",
    )
    field_order = (
        "name",
        "parent_id",
        "as_of",
        "lifetime",
        "until",
        "with_endpoint",
        "schema_only",
    )

    def offer_parents(self, branches: Iterable[Branch]) -> None:
        found = list(branches)
        offer_branches(self, "parent_id", found)
        if not self.initial.get("parent_id"):
            self.initial["parent_id"] = next((b.id for b in found if b.default), "")


def name_for_current_data(branch: Branch) -> str:
    """Suggest a name for the branch that keeps the data which another replaces now."""
    return branch.name + f"-until-{localtime(datetime.now(UTC)):%Y-%m-%d-%H%M%S}"


class ResetForm(forms.Form):
    preserve_under_name = forms.CharField(
        label="Keep current data as branch",
        required=False,
        widget=forms.TextInput(attrs=PLAIN),
        help_text="Optional. Without a name, the current data is lost, unless the branch's "
        "history has it.",
    )

    def require_name(self, branch: Branch, children: Sequence[Branch]) -> None:
        """Ask for the name if the branch has children: the branch of that name becomes their
        parent."""
        self.initial["preserve_under_name"] = name_for_current_data(branch)
        field = self.fields["preserve_under_name"]
        field.help_text = (
            f"Required, because the branch has child branches ({name_list(children)}): they become "
            "children of the branch that keeps the current data."
        )
        field.required = not self.is_bound


class RestoreForm(ResetForm):
    source_id = OpenChoiceField(label="From branch")
    field_order = ("source_id", "preserve_under_name")

    def offer_sources(self, branches: Iterable[Branch], branch_id: str) -> None:
        others = [branch for branch in branches if branch.id != branch_id]
        found = [(branch.id, branch_in_list(branch)) for branch in others]
        offer(self, "source_id", [("", "Choose a branch…"), *found] if len(found) > 1 else found)


class RoleForm(forms.Form):
    name = forms.CharField(widget=NAMED)


class DatabaseForm(forms.Form):
    # Not stripped: a name made by SQL may begin or end with blanks.
    name = forms.CharField(strip=False, widget=NAMED)
    owner_name = OpenChoiceField(
        label="Owner", help_text="This role has all privileges in the database."
    )

    def offer_owners(self, roles: Iterable[str], chosen: str = "") -> None:
        names = list(roles)
        offer(self, "owner_name", ((name, name) for name in names))
        self.initial.setdefault("owner_name", chosen or next(iter(names), ""))

    def changes(self, database: Database) -> dict[str, str]:
        was = {"name": database.name, "owner_name": database.owner_name}
        return {name: value for name, value in self.cleaned_data.items() if value != was[name]}


class SnapshotForm(LifetimeFields):
    name = forms.CharField(required=False, help_text="Leave empty to use its id.", widget=NAMED)
    field_order = ("name", "lifetime", "until")


class SnapshotEditForm(LifetimeFields):
    name = forms.CharField(widget=NAMED)
    field_order = ("name", "lifetime", "until")


class SnapshotRestoreForm(forms.Form):
    target_id = OpenChoiceField(label="Restore to", required=False)
    name = forms.CharField(
        required=False,
        label="New branch name",
        widget=forms.TextInput(attrs=PLAIN),
        help_text="Leave empty for a generated name.",
    )

    def offer_targets(self, branches: Iterable[Branch]) -> None:
        places = [
            (branch.id, f"Branch {branch_in_list(branch)}")
            for branch in branches
            if not branch.protected
        ]
        offer(self, "target_id", [("", "New branch"), *places])

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if cleaned.get("target_id") and cleaned.get("name"):
            self.add_error("name", "Only a new branch can have a name.")
        return cleaned


class ComparisonForm(forms.Form):
    """Which branches' schemas are compared. It is always usable: omitted fields have defaults."""

    database = OpenChoiceField(label="Database", required=False)
    base = OpenChoiceField(label="Compare with", required=False)
    moment = forms.CharField(
        label=in_zone("As of: a time or an LSN"),
        required=False,
        widget=forms.TextInput(attrs={**PLAIN, "placeholder": "now"}),
    )

    def __init__(
        self, data: Any, *, branches: Sequence[Branch], databases: Sequence[str], base_id: str
    ) -> None:
        chosen = {
            "database": data.get("database") or next(iter(databases), ""),
            "base": data.get("base") or base_id,
            "moment": data.get("moment", ""),
        }
        super().__init__(chosen)
        offer(self, "database", ((name, name) for name in databases))
        # Labelled by name alone: names are unique in a project, and ids would not fit.
        offer(self, "base", ((branch.id, branch.name) for branch in branches))


MAX_LISTED_NAMES = 5


def name_list(branches: Sequence[Branch]) -> str:
    return listed([branch.name for branch in branches], MAX_LISTED_NAMES)
