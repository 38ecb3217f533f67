"""The request as the console's views receive it."""

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

from console.management_api import ManagementAPI


class ConsoleRequest(HttpRequest):
    htmx: HtmxDetails
    # The management API as the signed-in user; absent on public pages. Nobody is signed in where
    # a form was sent after signing out: then all that it is asked raises Unauthorized.
    api: ManagementAPI
    # Where a live page hears of changes.
    channel: str
    # A person asks: the session does not lie idle.
    keeps_awake: bool
    # The form is of before somebody signed in or out: nothing is done for it.
    is_out_of_date: bool
