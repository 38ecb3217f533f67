"""Signing in with an API key or by a one-time link, switching between sign-ins, signing out."""

from collections.abc import Callable, Sequence
from enum import Enum

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.api.errors import APIError, Failure, Forbidden, NonsenseAnswer, Refused, Unauthorized
from console.api.management_api import ManagementAPI
from console.api.parallel import in_parallel
from console.api.resources.account import OwnKey, User
from console.api.transport import Server, default_server, find_server, servers
from console.forms.fields import offer
from console.pages.addresses import back
from console.pages.problems import spell_out
from console.pages.responses import FormPage, done, show_confirmation
from console.request import ConsoleRequest, public
from console.sign_in import one_time_links, sessions
from console.sign_in.sessions import Account

TOO_OFTEN = "This key, or its account, has signed in too often. Wait a minute."


class SignInForm(forms.Form):
    key = forms.CharField(
        label="API key",
        strip=True,
        # A key stays in the field if the API fails, but not if it is refused. Only its sender gets
        # it.
        widget=forms.PasswordInput(
            render_value=True, attrs={"autocomplete": "current-password", "autofocus": True}
        ),
    )

    server = forms.ChoiceField(required=False)
    field_order = ("server", "key")

    def offer_servers(self, found: Sequence[Server]) -> None:
        """Offer the servers. If there is only one, the field is removed."""
        offer(self, "server", ((server.name, server.shown_name) for server in found))
        if len(found) == 1:
            del self.fields["server"]

    def clean_key(self) -> str:
        key = str(self.cleaned_data["key"])
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise forms.ValidationError(
                "An API key has only letters, digits and punctuation, without spaces."
            )
        return key


@public
def sign_in(request: ConsoleRequest) -> HttpResponse:
    form = SignInForm(request.POST or None)
    form.offer_servers(servers())
    came_from = back(request, reverse("dashboard"))
    if request.method == "POST" and form.is_valid():
        key = form.cleaned_data["key"]
        server = find_server(form.cleaned_data.get("server", "")) or default_server()
        try:
            account = _account(ManagementAPI(key, server))
        except Unauthorized:
            form.add_error("key", "This API key is not valid.")
        except APIError as problem:
            form.add_error(None, spell_out(problem))
        else:
            if sessions.sign_in(request, key=key, account=account, server=server.name):
                return HttpResponseRedirect(_first_page(came_from, account))
            form.add_error(None, TOO_OFTEN)
    if form.has_error("key"):
        form.fields["key"].widget.render_value = False
    status = 422 if form.errors else 200
    context = {"form": form, "next": came_from}
    return render(request, "sign_in.html", context, status=status)


@public
def by_link(request: ConsoleRequest) -> HttpResponse:
    """Sign in by a one-time link. A GET does not use the link up: programs preview links."""
    code = request.POST.get("code") or request.GET.get("code") or ""
    key, account, problem = one_time_links.key_of(code), None, None
    if request.method != "POST":
        return _show_link(request, code if key else "")
    if key:
        try:
            account = _account(ManagementAPI(key))
        except Unauthorized as refusal:
            problem = refusal
        except APIError as failure:
            # The failure says nothing about the key, so the link can still be used.
            return _show_link(request, code, failure)
    used = one_time_links.use_up(code)
    if used and account and sessions.sign_in(request, key=key, account=account, by_link=True):
        return HttpResponseRedirect(_first_page(reverse("dashboard"), account))
    return _show_link(request, "", problem)


def _show_link(
    request: ConsoleRequest, good_code: str, problem: APIError | None = None
) -> HttpResponse:
    """Show the button that uses the link, if `good_code` is not ""."""
    status = 410 if not good_code else problem.page_status if problem else 200
    context = {
        "code": good_code,
        "is_good": bool(good_code),
        "problem": spell_out(problem) if problem else "",
    }
    return render(request, "sign_in_link.html", context, status=status)


@public
@require_POST
def switch(request: ConsoleRequest) -> HttpResponse:
    chosen = sessions.switch(request, request.POST.get("sign_in", ""))
    if chosen is None:
        messages.error(request, "This session has ended. Sign in again.")
        return HttpResponseRedirect(reverse("sign_in"))
    messages.success(request, f"Signed in as {chosen.account.name or 'the account'}.")
    return HttpResponseRedirect(_first_page(reverse("dashboard"), chosen.account))


@public
@require_POST
def sign_out(request: ConsoleRequest) -> HttpResponse:
    of_all, now = request.POST.get("which") == "all", sessions.present(request)
    if request.is_out_of_date and now and not of_all:
        words = f"You were not signed out: you have meanwhile signed in as {now.account.name}."
        messages.error(request, words)
        return HttpResponseRedirect(reverse("dashboard"))
    sessions.sign_out(request, of_all=of_all)
    messages.success(request, "Signed out.")
    return HttpResponseRedirect(reverse("sign_in"))


def sign_out_everywhere(request: ConsoleRequest) -> HttpResponse:
    page = FormPage(
        title="Sign out everywhere",
        intro="Signs out every browser that is signed in to this console with the same key. "
        "The key stays valid until you revoke it.",
        back=back(request, reverse("dashboard")),
        is_reading=True,
    )
    return show_confirmation(request, lambda: page, lambda: _signed_out_everywhere(request))


def _signed_out_everywhere(request: ConsoleRequest) -> HttpResponse:
    """Sign out every sign-in with the present key. Raises Unauthorized if nobody is signed in any
    more, and OutOfDate if the page was made before the last sign-in, as the key may be another's
    now."""
    if sessions.present(request) is None:
        raise Unauthorized("You are not signed in.")
    request.api.transport.require_current()
    if sessions.sign_out(request, everywhere=True):
        messages.success(request, "All sessions with this key are signed out.")
    else:
        words = (
            "You are signed out here. Other browsers may still be signed in, because the "
            "console could not store the sign-out. The cause is in its log."
        )
        messages.error(request, words)
    return done(request, reverse("sign_in"), is_live=False)


def _account(api: ManagementAPI) -> Account:
    """Read who is signed in, and what the pages may offer. Raises an `APIError` for a bad key."""
    user, own, keys, activity, webhooks = in_parallel(
        lambda: _user_of_key(api),
        lambda: _own_key(api),
        lambda: _probe_access(api.api_keys),
        lambda: _probe_access(lambda: api.events(limit=1)),
        lambda: _probe_access(api.webhooks.list),
    )
    limits, project_id = own.limits, own.limits.project_id if own.limits else ""
    if limits is None and keys is Access.REFUSED:
        project_id = _only_project(api)
    return Account(
        name=user.shown_name,
        plan=user.plan,
        project_id=project_id,
        read_only=limits is not None and limits.read_only,
        ends=limits.expires_at.isoformat() if limits and limits.expires_at else "",
        has_activity=activity is not Access.MISSING,
        has_webhooks=webhooks is not Access.MISSING,
        is_perch=limits is not None,
        is_operator=own.is_operator,
        key_id=own.id,
    )


def _own_key(api: ManagementAPI) -> OwnKey:
    """Read what the key may do; unknown on a server that does not report it."""
    try:
        return api.own_key()
    except Failure:
        return OwnKey(limits=None, is_operator=False)


class Access(Enum):
    GIVEN = "given"
    REFUSED = "refused"
    MISSING = "missing"


def _probe_access(call: Callable[[], object]) -> Access:
    """Try a part of the API that not every server has, and that not every key may use."""
    try:
        call()
    except Forbidden:
        return Access.REFUSED
    except (Refused, Unauthorized, NonsenseAnswer):
        return Access.MISSING
    except APIError:
        # A temporary failure is no reason to hide the part for as long as the session lasts.
        return Access.GIVEN
    return Access.GIVEN


def _only_project(api: ManagementAPI) -> str:
    """Return the only project of a key that may not see what belongs to the whole account. It is ""
    if the key sees several projects, or none."""
    projects = api.projects(limit=2).items
    return projects[0].id if len(projects) == 1 else ""


def _first_page(came_from: str, account: Account) -> str:
    """Return the page to go to. With a key for one project, that is the project, not the list."""
    if account.project_id and came_from == reverse("dashboard"):
        return reverse("project", args=[account.project_id])
    return came_from


def _user_of_key(api: ManagementAPI) -> User:
    try:
        return api.me()
    except Forbidden:
        # The key is valid, but it is an organization's: the API has no user for it.
        api.projects(limit=1)
        return User(login="organization key", email="", plan="")
