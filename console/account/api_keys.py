"""The pages of API keys. A new key is shown once."""

from datetime import date

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.timezone import localdate, localtime
from django.views.decorators.http import require_safe

from console.api.parallel import in_parallel
from console.api.resources.account import KeyLimits
from console.forms.api_requests import body_of
from console.forms.fields import PLAIN, OpenChoiceField, in_zone, offer_projects
from console.pages.problems import problems_beside
from console.pages.responses import (
    FormPage,
    choices,
    done,
    show_confirmation,
    show_dialog,
)
from console.request import ConsoleRequest
from console.sign_in import sessions

# In a later year, the date of the following day might not exist.
MAX_EXPIRY_YEAR = 9998


class ApiKeyForm(forms.Form):
    name = forms.CharField(
        help_text="Name the program or person that will use the key.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}),
    )
    project_id = OpenChoiceField(
        label="Project", required=False, help_text="Choose a project to limit the key to it."
    )
    read_only = forms.BooleanField(
        label="Read only",
        required=False,
        help_text="The key can read all but passwords and the rows of tables, and change nothing.",
    )
    expires_at = forms.DateField(
        label=in_zone("Expires after"),
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
        help_text="Valid until the end of this day. Leave empty for no expiry.",
    )

    def clean_expires_at(self) -> date | None:
        last_day: date | None = self.cleaned_data["expires_at"]
        if last_day and last_day.year > MAX_EXPIRY_YEAR:
            raise forms.ValidationError("This date is too far in the future.")
        if last_day and last_day < localdate():
            raise forms.ValidationError("This date is in the past.")
        return last_day


@require_safe
def index(request: ConsoleRequest) -> HttpResponse:
    keys = request.api.api_keys()
    context = {"keys": keys, "knows_limits": any(key.limits for key in keys)}
    return render(request, "api_keys.html", context)


def create(request: ConsoleRequest) -> HttpResponse:
    form = ApiKeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            body = body_of(form, "api_key_create")
            key = request.api.create_api_key(body)
            requested = KeyLimits.read({"read_only": False, **body})
            context = {
                "key": key,
                "is_wider": requested != KeyLimits() and key.limits != requested,
            }
            return show_dialog(request, "_new_key.html", context, title="Your new API key")
    _offer_limits(request, form)
    page = FormPage(title="Create API key", submit="Create key", back=reverse("api_keys"))
    return page.show(request, form)


def _offer_limits(request: ConsoleRequest, form: ApiKeyForm) -> None:
    """Offer limits only if the server has them: then the keys in its list have their limits too."""
    keys, projects = in_parallel(
        lambda: choices(request, request.api.api_keys),
        lambda: choices(request, request.api.all_projects),
    )
    if form.is_bound or any(key.limits for key in keys):
        offer_projects(form, projects)
    else:
        for name in ("project_id", "read_only", "expires_at"):
            del form.fields[name]


def revoke(request: ConsoleRequest, key_id: int) -> HttpResponse:
    url = reverse("api_keys")

    def remove() -> HttpResponse:
        request.api.revoke_api_key(key_id)
        return done(request, url, "API key revoked.", is_live=False)

    def page() -> FormPage:
        keys = choices(request, request.api.api_keys)
        key = next((one for one in keys if one.id == key_id), None)
        name = f"“{key.name}”" if key else f"number {key_id}"
        created = key.created_at if key else None
        since = f", created {localtime(created):%Y-%m-%d %H:%M:%S}," if created else ""
        own = sessions.present_account(request).key_id
        if own is None:
            yours = " If you are signed in with it, you must sign in with another key."
        elif own == key_id:
            yours = " You are signed in with this key: you will be signed out."
        else:
            yours = ""
        return FormPage(
            title="Revoke API key",
            intro=f"Programs that use the key {name}{since} stop working at once.{yours}",
            submit="Revoke key",
            danger=True,
            back=url,
        )

    return show_confirmation(request, page, remove)
