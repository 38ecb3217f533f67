"""The form that creates an API key, with the limits that the key is to have."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from django import forms

from console.api_keys import Reach
from console.api_results import Project
from console.forms import PLAIN, OpenChoiceField, offer, project_in_list

# In a later year, the date of the following day might not exist.
LAST_YEAR = 9998


class ApiKeyForm(forms.Form):
    name = forms.CharField(
        help_text="What will use it, so that you know which to revoke.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}),
    )
    project_id = OpenChoiceField(
        label="Project", required=False, help_text="The only one it will see, or all."
    )
    read_only = forms.BooleanField(
        label="Read only", required=False, help_text="It sees everything there and changes nothing."
    )
    expires_at = forms.DateField(
        label="Expires after",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
        help_text="It works until the end of that day, in UTC. Left empty, until it is revoked.",
    )

    def clean_expires_at(self) -> date | None:
        last_day: date | None = self.cleaned_data["expires_at"]
        if last_day and last_day.year > LAST_YEAR:
            raise forms.ValidationError("That is too far away.")
        if last_day and last_day < datetime.now(UTC).date():
            raise forms.ValidationError("That day is over.")
        return last_day

    def offer_projects(self, projects: Iterable[Project]) -> None:
        every = [("", "All projects")]
        offer(self, "project_id", [*every, *((one.id, project_in_list(one)) for one in projects)])

    def without_limits(self) -> None:
        """Leave out the limits, for a server whose keys have none."""
        for name in ("project_id", "read_only", "expires_at"):
            del self.fields[name]

    @property
    def reach(self) -> Reach:
        """The limits that were chosen, once the form is validated."""
        last_day = self.cleaned_data.get("expires_at")
        end = datetime.combine(last_day + timedelta(days=1), time(), UTC) if last_day else None
        return Reach(
            project_id=self.cleaned_data.get("project_id", ""),
            read_only=self.cleaned_data.get("read_only", False),
            expires_at=end,
        )
