"""The form of the query page: the database, the role, the SQL and its limits."""

from collections.abc import Iterable, Sequence

from django import forms

from console.api_results import Branch, Database, Endpoint
from console.forms import OpenChoiceField, offer

# The choices for the most seconds that a statement may take, and the default.
TIMES = (10, 30, 60, 300)
USUALLY = 30


class QueryForm(forms.Form):
    branch = OpenChoiceField(widget=forms.Select(attrs={"data-choose": "place"}))
    database = OpenChoiceField()
    role = OpenChoiceField()
    seconds = forms.TypedChoiceField(
        label="At most",
        choices=[(seconds, f"{seconds} s") for seconds in TIMES],
        coerce=int,
        required=False,
        empty_value=None,
        initial=USUALLY,
    )
    read_only = forms.BooleanField(label="Read only", required=False, initial=True)
    sql = forms.CharField(
        label="SQL",
        strip=False,
        required=False,
        widget=forms.Textarea(
            attrs={
                "rows": 9,
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
                "data-run": "",
                "placeholder": "SELECT version();",
            }
        ),
    )

    @property
    def place(self) -> list[forms.BoundField]:
        """The fields that depend on the branch."""
        return [self["database"], self["role"]]

    def offer_branches(self, branches: Iterable[Branch], endpoints: Iterable[Endpoint]) -> None:
        """Offer the branches that have an endpoint, the default branch first."""
        reached = {endpoint.branch_id for endpoint in endpoints}
        found = sorted(branches, key=lambda branch: not branch.default)
        offer(
            self,
            "branch",
            ((branch.id, branch.name) for branch in found if branch.id in reached),
        )

    def offer_place(self, databases: Sequence[Database], roles: Sequence[str]) -> None:
        """Offer the databases and roles. The default role is the first owner of a database."""
        offer(self, "database", ((one.name, one.name) for one in databases))
        offer(self, "role", ((role, role) for role in roles))
        owners = [one.owner_name for one in databases if one.owner_name in roles]
        self.initial.setdefault("role", owners[0] if owners else next(iter(roles), ""))
