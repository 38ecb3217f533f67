"""The pages of API keys. A new key is shown once."""

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from console.api_key_form import ApiKeyForm
from console.forms import PROJECTS_OFFERED
from console.request import ConsoleRequest
from console.responses import (
    FormPage,
    choices,
    done,
    problems_beside,
    show_confirmation,
    show_form,
    show_secret,
)
from console.side_by_side import side_by_side


@require_safe
def index(request: ConsoleRequest) -> HttpResponse:
    keys = request.api.api_keys()
    context = {"keys": keys, "knows_limits": any(key.reach for key in keys)}
    return render(request, "api_keys.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest) -> HttpResponse:
    form = ApiKeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            key = request.api.create_api_key(form.cleaned_data["name"], form.reach)
            context = {
                "title": "Your new API key",
                "key": key,
                "is_wider": form.reach.limits and key.reach != form.reach,
            }
            return show_secret(request, "_new_key.html", context)
    _offer_limits(request, form)
    page = FormPage(title="Create an API key", submit="Create key", back=reverse("api_keys"))
    return show_form(request, form, page)


def _offer_limits(request: ConsoleRequest, form: ApiKeyForm) -> None:
    """Offer limits only if the server has them: then the keys in its list have their limits too."""
    keys, projects = side_by_side(
        lambda: choices(request, request.api.api_keys),
        lambda: choices(request, lambda: list(request.api.projects(limit=PROJECTS_OFFERED).items)),
    )
    if form.is_bound or any(key.reach for key in keys):
        form.offer_projects(projects)
    else:
        form.without_limits()


@require_http_methods(["GET", "HEAD", "POST"])
def revoke(request: ConsoleRequest, key_id: int) -> HttpResponse:
    url = reverse("api_keys")

    def remove() -> HttpResponse:
        request.api.revoke_api_key(key_id)
        return done(request, url, "The key is revoked.", is_live=False)

    def page() -> FormPage:
        keys = {key.id: key for key in choices(request, request.api.api_keys)}
        name = f"“{keys[key_id].name}”" if key_id in keys else f"number {key_id}"
        return FormPage(
            title="Revoke the API key",
            intro=f"Whatever uses the key {name} stops working at once. If you are signed in with "
            "it, you will be asked for another.",
            submit="Revoke key",
            danger=True,
            back=url,
        )

    return show_confirmation(request, page, remove)
