"""Signing in with an API key, and out again."""

from collections.abc import Callable
from enum import Enum

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from console import sessions
from console.api_errors import APIError, Forbidden, NonsenseAnswer, Refused, Unauthorized
from console.api_results import User
from console.forms import SignInForm
from console.management_api import ManagementAPI, side_by_side
from console.middleware import public
from console.request import ConsoleRequest
from console.responses import back, spell_out
from console.sessions import Account


@public
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: ConsoleRequest) -> HttpResponse:
    form = SignInForm(request.POST or None)
    came_from = back(request, reverse("dashboard"))
    if request.method == "POST" and form.is_valid():
        key = form.cleaned_data["key"]
        try:
            account = _account(ManagementAPI(key))
        except Unauthorized:
            form.add_error("key", "The management API does not accept this key.")
        except APIError as problem:
            form.add_error(None, spell_out(problem))
        else:
            sessions.sign_in(request, key=key, account=account)
            return HttpResponseRedirect(_first_page(came_from, account))
    status = 422 if form.errors else 200
    context = {"form": form, "next": came_from, "account": None}
    return render(request, "sign_in.html", context, status=status)


@public
@require_POST
def sign_out(request: ConsoleRequest) -> HttpResponse:
    sessions.sign_out(request)
    messages.success(request, "You are signed out.")
    return HttpResponseRedirect(reverse("sign_in"))


def _account(api: ManagementAPI) -> Account:
    """Who is signed in, and what their pages may offer. Raises an `APIError` for a bad key."""
    user, keys, activity, webhooks = side_by_side(
        lambda: _whose(api),
        lambda: _access(api.api_keys),
        lambda: _access(lambda: api.events(limit=1)),
        lambda: _access(api.webhooks.list),
    )
    return Account(
        name=user.shown_name,
        plan=user.plan,
        project_id=_only_project(api) if keys is Access.REFUSED else "",
        has_activity=activity is not Access.MISSING,
        has_webhooks=webhooks is not Access.MISSING,
    )


class Access(Enum):
    GIVEN = "given"
    REFUSED = "refused"
    MISSING = "missing"


def _access(call: Callable[[], object]) -> Access:
    """To a part of the API that not all its servers have."""
    try:
        call()
    except Forbidden:
        return Access.REFUSED
    except (Refused, NonsenseAnswer):
        return Access.MISSING
    except APIError:
        # It answers badly today; that is no reason to hide it for as long as the session lasts.
        return Access.GIVEN
    return Access.GIVEN


def _only_project(api: ManagementAPI) -> str:
    """The one that a key is limited to: such a key may not see what is the whole account's."""
    projects = api.projects(limit=2).items
    return projects[0].id if len(projects) == 1 else ""


def _first_page(came_from: str, account: Account) -> str:
    """Who may see one project only has nothing to choose from."""
    if account.project_id and came_from == reverse("dashboard"):
        return reverse("project", args=[account.project_id])
    return came_from


def _whose(api: ManagementAPI) -> User:
    try:
        return api.me()
    except Forbidden:
        # A good key, but an organization's: it has no user to tell of.
        api.projects(limit=1)
        return User(login="organization key", email="", plan="")
