"""The form that creates a webhook."""

from collections.abc import Iterable
from typing import Any, cast

from django import forms

from console.api_results import Project
from console.api_webhooks import ALL_EVENTS
from console.event_words import GROUPS
from console.forms import PLAIN, OpenChoiceField, offer, project_in_list


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="URL",
        help_text="Of your program: each event is posted there as JSON, signed.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True, "inputmode": "url"}),
    )
    description = forms.CharField(required=False, widget=forms.TextInput(attrs=PLAIN))
    project_id = OpenChoiceField(label="Project", required=False)
    event_types = forms.MultipleChoiceField(
        label="Events",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen means all of them, also those that are yet to come.",
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        cast(forms.MultipleChoiceField, self.fields["event_types"]).choices = [
            (group, [(kind.value, kind.label) for kind in kinds]) for group, kinds in GROUPS.items()
        ]

    def offer_projects(self, projects: Iterable[Project]) -> None:
        every = ("", "All projects")
        offer(self, "project_id", [every, *((one.id, project_in_list(one)) for one in projects)])

    def attributes(self) -> dict[str, Any]:
        """Return the attributes for the API, once the form is validated."""
        asked = {name: value for name, value in self.cleaned_data.items() if value}
        return {"event_types": [ALL_EVENTS], **asked}
