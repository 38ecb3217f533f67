"""The forms about branches and what is on them: roles, databases, snapshots."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms

from console.api_branches import NewBranch
from console.api_results import Branch, Database
from console.filters import MomentField
from console.forms import PLAIN, OpenChoiceField, branch_in_list, offer, offer_branches

AT = "at"
# Seconds, and the words for them.
LIFETIMES = {
    "3600": "In 1 hour",
    "86400": "In 1 day",
    "604800": "In 7 days",
    "2592000": "In 30 days",
}
NAMED = forms.TextInput(attrs={**PLAIN, "autofocus": True})


class LifetimeFields(forms.Form):
    """When something expires. The time field is shown if “At a time…” is chosen."""

    lifetime = OpenChoiceField(label="Expires", required=False)
    until = MomentField(label="Time (UTC)")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", "Never"), *LIFETIMES.items(), (AT, "At a time…")]
        offer(self, "lifetime", choices)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        lifetime = cleaned.get("lifetime", "")
        if lifetime == AT and not cleaned.get("until") and "until" not in self.errors:
            self.add_error("until", "Say when.")
        if lifetime not in ("", AT, *LIFETIMES):
            self.add_error("lifetime", "There is no such time.")
        if lifetime != AT:
            # The time was typed, but another choice made: it is not used, so its errors are not
            # shown.
            self.errors.pop("until", None)
        return cleaned

    @property
    def expires_at(self) -> datetime | None:
        """When it will expire, once the form is validated; None for never."""
        return _end(self.cleaned_data["lifetime"], self.cleaned_data.get("until"))

    @staticmethod
    def initial_of(expires_at: datetime | None) -> dict[str, Any]:
        if not expires_at:
            return {}
        return {"lifetime": AT, "until": expires_at.replace(second=0, microsecond=0)}

    def filled_in_end(self) -> datetime | None:
        """Return the same for what is filled in now, validated or not; None if it is invalid."""
        try:
            until = self.fields["until"].clean(self["until"].value())
            return _end(self["lifetime"].value() or "", until)
        except (forms.ValidationError, ValueError, OverflowError):
            return None


def _end(lifetime: str, until: datetime | None) -> datetime | None:
    if lifetime == AT:
        return until
    return datetime.now(UTC) + timedelta(seconds=int(lifetime)) if lifetime else None


class BranchForm(LifetimeFields):
    name = forms.CharField(
        required=False, help_text="Left empty, the branch gets a name of its own.", widget=NAMED
    )
    parent_id = OpenChoiceField(label="Parent", required=False)
    with_endpoint = forms.BooleanField(
        label="Create an endpoint on it",
        required=False,
        initial=True,
        help_text="Without one, nobody can connect to the branch.",
    )
    schema_only = forms.BooleanField(
        label="Schema only",
        required=False,
        help_text="Roles, databases and tables, and no rows. It has no parent then.",
    )
    protected = forms.BooleanField(
        label="Protected",
        required=False,
        help_text="It cannot be deleted, reset or expire, and copies of it get passwords of "
        "their own.",
    )
    field_order = ("name", "parent_id", "lifetime", "until", "with_endpoint", "schema_only")

    def offer_parents(self, branches: Iterable[Branch]) -> None:
        found = list(branches)
        offer_branches(self, "parent_id", found)
        if not self.initial.get("parent_id"):
            self.initial["parent_id"] = next((b.id for b in found if b.default), "")

    @property
    def wanted(self) -> NewBranch:
        """The branch that was asked for, once the form is validated."""
        asked = self.cleaned_data
        return NewBranch(
            name=asked["name"],
            parent_id=asked["parent_id"],
            expires_at=self.expires_at,
            protected=asked["protected"],
            schema_only=asked["schema_only"],
            with_endpoint=asked["with_endpoint"],
        )


class ResetForm(forms.Form):
    preserve_under_name = forms.CharField(
        label="Keep what it is now as a branch called",
        required=False,
        widget=forms.TextInput(attrs=PLAIN),
        help_text="Left empty, its present data is gone for good.",
    )

    def require_name(self, children: Sequence[Branch]) -> None:
        """Ask for the name if the branch has children: the branch of that name becomes their
        parent."""
        field = self.fields["preserve_under_name"]
        field.help_text = (
            f"It has children ({named(children)}): they go on as children of the branch that "
            "keeps its data."
        )
        field.required = not self.is_bound


class RestoreForm(ResetForm):
    source_id = OpenChoiceField(label="From branch")
    field_order = ("source_id", "preserve_under_name")

    def offer_sources(self, branches: Iterable[Branch], branch_id: str) -> None:
        others = [branch for branch in branches if branch.id != branch_id]
        offer_branches(self, "source_id", others)


class RoleForm(forms.Form):
    name = forms.CharField(widget=NAMED)


class DatabaseForm(forms.Form):
    # Not stripped: a name made by SQL may begin or end with blanks.
    name = forms.CharField(strip=False, widget=NAMED)
    owner_name = OpenChoiceField(label="Owner", help_text="The role that may do everything in it.")

    def offer_owners(self, roles: Iterable[str], chosen: str = "") -> None:
        names = list(roles)
        offer(self, "owner_name", ((name, name) for name in names))
        self.initial.setdefault("owner_name", chosen or next(iter(names), ""))

    def changes(self, database: Database) -> dict[str, str]:
        """Return what differs from the database as it was shown."""
        was = {"name": database.name, "owner_name": database.owner_name}
        return {name: value for name, value in self.cleaned_data.items() if value != was[name]}


class SnapshotForm(LifetimeFields):
    name = forms.CharField(
        required=False, help_text="Left empty, it is named after its id.", widget=NAMED
    )
    field_order = ("name", "lifetime", "until")


class SnapshotEditForm(LifetimeFields):
    name = forms.CharField(widget=NAMED)
    field_order = ("name", "lifetime", "until")


class SnapshotRestoreForm(forms.Form):
    target_id = OpenChoiceField(label="As", required=False)
    name = forms.CharField(
        required=False,
        label="Name of the new branch",
        widget=forms.TextInput(attrs=PLAIN),
        help_text="Left empty, it gets a name of its own.",
    )

    def offer_targets(self, branches: Iterable[Branch]) -> None:
        places = [
            (branch.id, f"The data of {branch_in_list(branch)}")
            for branch in branches
            if not branch.protected
        ]
        offer(self, "target_id", [("", "A new branch"), *places])

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if cleaned.get("target_id") and cleaned.get("name"):
            self.add_error("name", "Only a new branch takes a name.")
        return cleaned


class ComparisonForm(forms.Form):
    """Which branches' schemas are compared. It is always usable: omitted fields have defaults."""

    database = OpenChoiceField(label="Database", required=False)
    base = OpenChoiceField(label="Compared with", required=False)

    def __init__(
        self, data: Any, *, branches: Sequence[Branch], databases: Sequence[str], base_id: str
    ) -> None:
        chosen = {
            "database": data.get("database") or next(iter(databases), ""),
            "base": data.get("base") or base_id,
        }
        super().__init__(chosen)
        offer(self, "database", ((name, name) for name in databases))
        # Labelled by name alone: names are unique in a project, and ids would not fit.
        offer(self, "base", ((branch.id, branch.name) for branch in branches))


# The most names listed in a sentence.
MOST_NAMES = 5


def named(branches: Sequence[Branch]) -> str:
    """Return the branches' names, as words of a sentence."""
    shown = ", ".join(branch.name for branch in branches[:MOST_NAMES])
    more = len(branches) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
