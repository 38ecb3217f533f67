"""What is told once, on the page that comes next: in a cookie of its own.

In the session's, each page that shows some would write back the session as it was when the page was
asked for, and so undo a switch, or a sign-in, that another tab has made meanwhile.
"""

from django.contrib.messages.storage.cookie import CookieStorage
from django.http import HttpResponse


class NoticeStorage(CookieStorage):
    cookie_name = "perch_notices"

    def _update_cookie(self, encoded_data: str | None, response: HttpResponse) -> None:
        """Where there is none and was none, nothing is sent."""
        if encoded_data or self.cookie_name in self.request.COOKIES:
            super()._update_cookie(encoded_data, response)  # type: ignore[misc]
