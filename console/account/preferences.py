"""The preferences of a reader in this browser: the theme, and whether single keys are shortcuts.

Each is in a cookie of its own. The server reads them, so that no page is drawn twice."""

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.encoding import iri_to_uri

from console.pages.addresses import back, is_own_url
from console.pages.responses import FormPage
from console.request import ConsoleRequest, public

THEME, SHORTCUTS = "perch_theme", "perch_shortcuts"
THEMES = {"": "System", "light": "Light", "dark": "Dark"}
MAX_AGE = 365 * 24 * 3600


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(
        label="Theme",
        required=False,
        choices=list(THEMES.items()),
    )
    shortcuts = forms.BooleanField(
        label="Single-key shortcuts",
        required=False,
        help_text="For example “g”, then “p”, for projects. Ctrl-K always works.",
    )


def theme(request: HttpRequest) -> str:
    """Return "light", "dark", or "" for the system's preference."""
    chosen = request.COOKIES.get(THEME, "")
    return chosen if chosen in THEMES else ""


def has_shortcuts(request: HttpRequest) -> bool:
    return request.COOKIES.get(SHORTCUTS) != "off"


def preferences(request: HttpRequest) -> dict[str, object]:
    """Template context."""
    return {"theme": theme(request), "has_shortcuts": has_shortcuts(request)}


def _keep(answer: HttpResponse, name: str, value: str) -> None:
    """Store a choice; "", the default, by deleting the cookie."""
    if value:
        answer.set_cookie(name, value, max_age=MAX_AGE, httponly=True, samesite="Lax")
    else:
        answer.delete_cookie(name, samesite="Lax")


@public
def choose(request: ConsoleRequest) -> HttpResponse:
    form = PreferencesForm(request.POST or None)
    at = request.htmx.current_url_abs_path if request.htmx else None
    url = back(request, at if at and is_own_url(request, at) else reverse("dashboard"))
    if request.method == "POST" and form.is_valid():
        answer: HttpResponse = HttpResponseRedirect(url)
        if request.htmx:
            # Reload the whole page, so that it changes its look.
            answer = HttpResponse(headers={"HX-Redirect": iri_to_uri(url)})
        _keep(answer, THEME, form.cleaned_data["theme"])
        _keep(answer, SHORTCUTS, "" if form.cleaned_data["shortcuts"] else "off")
        return answer
    form.initial = {
        "theme": theme(request),
        "shortcuts": has_shortcuts(request),
    }
    page = FormPage(title="Preferences", submit="Save", back=url, is_reading=True)
    return page.show(request, form)
