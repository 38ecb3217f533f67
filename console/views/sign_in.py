"""Signing in with an API key, and out again."""

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from console import sessions
from console.api_errors import APIError, Forbidden, Unauthorized
from console.api_results import User
from console.forms import SignInForm
from console.management_api import ManagementAPI
from console.middleware import public
from console.request import ConsoleRequest
from console.responses import back, spell_out


@public
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: ConsoleRequest) -> HttpResponse:
    form = SignInForm(request.POST or None)
    came_from = back(request, reverse("dashboard"))
    if request.method == "POST" and form.is_valid():
        key = form.cleaned_data["key"]
        try:
            user = _whose(ManagementAPI(key))
        except Unauthorized:
            form.add_error("key", "The management API does not accept this key.")
        except APIError as problem:
            form.add_error(None, spell_out(problem))
        else:
            sessions.sign_in(request, key=key, user=user)
            return HttpResponseRedirect(came_from)
    status = 422 if form.errors else 200
    context = {"form": form, "next": came_from, "account": None}
    return render(request, "sign_in.html", context, status=status)


@public
@require_POST
def sign_out(request: ConsoleRequest) -> HttpResponse:
    sessions.sign_out(request)
    messages.success(request, "You are signed out.")
    return HttpResponseRedirect(reverse("sign_in"))


def _whose(api: ManagementAPI) -> User:
    try:
        return api.me()
    except Forbidden:
        # A good key, but an organization's: it has no user to tell of.
        api.projects(limit=1)
        return User(login="organization key", email="", plan="")
