"""The preferences of a reader in this browser: the theme, and whether single keys are shortcuts.

Each is in a cookie of its own. The server reads them, so that no page is drawn twice.
"""

from django import forms
from django.http import HttpRequest, HttpResponse

THEME, SHORTCUTS = "perch_theme", "perch_shortcuts"
THEMES = {"": "As the system does", "light": "Light", "dark": "Dark"}
A_YEAR = 365 * 24 * 3600


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(
        label="Colours",
        required=False,
        choices=list(THEMES.items()),
    )
    shortcuts = forms.BooleanField(
        label="Shortcuts by plain keys",
        required=False,
        help_text="As “g”, then “p”, for projects. Ctrl-K works either way.",
    )


def theme(request: HttpRequest) -> str:
    """Return "light", "dark", or "" for the system's preference."""
    chosen = request.COOKIES.get(THEME, "")
    return chosen if chosen in THEMES else ""


def has_shortcuts(request: HttpRequest) -> bool:
    return request.COOKIES.get(SHORTCUTS) != "off"


def keep(answer: HttpResponse, form: PreferencesForm) -> None:
    """Store the choices, once the form is validated. A default is stored by deleting the cookie."""
    _keep(answer, THEME, form.cleaned_data["theme"])
    _keep(answer, SHORTCUTS, "" if form.cleaned_data["shortcuts"] else "off")


def preferences(request: HttpRequest) -> dict[str, object]:
    """Template context."""
    return {"theme": theme(request), "has_shortcuts": has_shortcuts(request)}


def _keep(answer: HttpResponse, name: str, value: str) -> None:
    if value:
        answer.set_cookie(name, value, max_age=A_YEAR, httponly=True, samesite="Lax")
    else:
        answer.delete_cookie(name, samesite="Lax")
