"""The form for the theme and the shortcuts, which hold for the browser, not for an account."""

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.encoding import iri_to_uri
from django.views.decorators.http import require_http_methods

from console import preferences
from console.middleware import public
from console.request import ConsoleRequest
from console.responses import FormPage, back, is_own_url, show_form


@public
@require_http_methods(["GET", "HEAD", "POST"])
def choose(request: ConsoleRequest) -> HttpResponse:
    form = preferences.PreferencesForm(request.POST or None)
    url = back(request, _shown(request))
    if request.method == "POST" and form.is_valid():
        answer: HttpResponse = HttpResponseRedirect(url)
        if request.htmx:
            # Reload the whole page, so that it changes its look.
            answer = HttpResponse(headers={"HX-Redirect": iri_to_uri(url)})
        preferences.keep(answer, form)
        return answer
    form.initial = {
        "theme": preferences.theme(request),
        "shortcuts": preferences.has_shortcuts(request),
    }
    page = FormPage(title="Look and shortcuts", submit="Save", back=url, is_reading=True)
    return show_form(request, form, page)


def _shown(request: ConsoleRequest) -> str:
    """Return the page that is open, if htmx names it; by default the dashboard."""
    at = request.htmx.current_url_abs_path if request.htmx else None
    return at if at and is_own_url(request, at) else reverse("dashboard")
