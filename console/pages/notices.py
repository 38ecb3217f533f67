"""Messages that are shown once, on the next page. They are stored in a cookie of their own.

If they were in the session's cookie, each page that shows one would write back the session as it
was when the page was requested. That could undo a sign-in or a switch in another tab.
"""

from django.contrib.messages.storage.cookie import CookieStorage
from django.http import HttpResponse
from django.shortcuts import render

from console.request import ConsoleRequest


class NoticeStorage(CookieStorage):
    cookie_name = "perch_notices"

    def _update_cookie(self, encoded_data: str | None, response: HttpResponse) -> None:
        """Send no cookie if there are no messages and were none."""
        if encoded_data or self.cookie_name in self.request.COOKIES:
            super()._update_cookie(encoded_data, response)  # type: ignore[misc]


def show_notices(request: ConsoleRequest, *, status: int) -> HttpResponse:
    """Show only the messages, wherever htmx would put its answer."""
    answer = render(request, "_notices.html", status=status)
    answer["HX-Reswap"] = "none"
    return answer
