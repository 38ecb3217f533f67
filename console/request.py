"""The request as the console's views receive it."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django_htmx.middleware import HtmxDetails

from console.api.management_api import ManagementAPI
from console.memory import Reservation


class ConsoleRequest(HttpRequest):
    htmx: HtmxDetails
    # The management API as the signed-in user; absent on public pages. If a form was sent after
    # signing out, nobody is signed in: every call then raises Unauthorized.
    api: ManagementAPI
    # What this request and its answer take up.
    memory: Reservation
    # The answer may hold secrets, so it is not compressed (middleware.LeanMiddleware).
    shows_secrets: bool
    # A person sent this request, so it keeps the session awake.
    keeps_awake: bool
    # The form was made before a sign-in or sign-out, so it must not change anything.
    is_out_of_date: bool


View = Callable[..., HttpResponseBase]


def public(view: View) -> View:
    """Mark a view that does not require a sign-in."""
    view.public = True  # type: ignore[attr-defined]
    return view


def receives_file(view: View) -> View:
    """Mark a view whose form has a file (`received_forms`)."""
    view.receives_file = True  # type: ignore[attr-defined]
    return view


def receives_row(view: View) -> View:
    """Mark a view whose form has a row of a table, with up to three fields for each column
    (`received_forms`)."""
    view.most_fields = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS  # type: ignore[attr-defined]
    return view
