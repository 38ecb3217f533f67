"""Sends the management API's calls over HTTP, and turns each failure into its own exception."""

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests
from django.conf import settings

from console import client_address, logs
from console.api.answers import decoded, result_of
from console.api.bounded_http import (
    BoundedAdapter,
    TooLong,
    environment_for,
    never_sent,
    read_whole,
)
from console.api.errors import (
    BrokenOff,
    NonsenseAnswer,
    NotFound,
    NotOffered,
    OutOfDate,
    Refused,
    RequestShown,
    TooSlow,
    Unauthorized,
    Unreachable,
)
from console.api.fields import Resource, objects, one
from console.turns import in_turns

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Resource)
# A request's query or its body.
Given = Mapping[str, Any] | None

# Some answers may take this many times as long as usual. Perch itself gives them up after 60 s.
LONG_FACTOR = 5
# Path segments that HTTP clients resolve or drop, so that the request would go to another address.
# SQL can give a role such a name.
UNSENDABLE = frozenset((".", "..", ""))


ONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_once_token() -> str:
    """Return a value for the field `once` of a form."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True)
class Server:
    """A server that this console may be used with: only those that its operator has named. If users
    could type an address, they could make the console send requests to whatever it can reach."""

    # As stored in sessions; "" for the server of MANAGEMENT_API_URL.
    name: str
    url: str

    @property
    def shown_name(self) -> str:
        return self.name or urlsplit(self.url).netloc


def servers() -> list[Server]:
    """Return all servers, that of MANAGEMENT_API_URL first."""
    others = settings.OTHER_SERVERS.items()
    return [default_server(), *(Server(name, url) for name, url in others)]


def default_server() -> Server:
    return Server("", settings.MANAGEMENT_API_URL)


def find_server(name: str) -> Server | None:
    """Return the server of that name; None if the operator does not, or no longer, name it."""
    return next((server for server in servers() if server.name == name), None)


class Transport:
    """Sends one user's requests to one server, with the user's key. Raises an `APIError` for every
    failure."""

    def __init__(self, key: str, server: Server, *, once: str = "") -> None:
        """Without a key nothing is sent: every call then raises Unauthorized."""
        # Of the form whose request this is; "" for none. It is part of the idempotency keys, so
        # that a form that is sent twice makes one thing. It changes if the server refuses, as it
        # would repeat its refusal; if no answer arrived, the request may have taken effect.
        self.once = once if ONCE.fullmatch(once) else ""
        self._key = key
        self._server = server
        self._too_slow: Unreachable | None = None
        # True if the page that sends the request was made before the last sign-in or sign-out.
        # Such a page may read, but a change raises OutOfDate.
        self.is_out_of_date = False
        # True if a request that would change something, or reveal a password, is not sent but
        # noted in `shown` and raised.
        self.only_shows = False
        self.shown: RequestShown | None = None

    def get(self, *path: str, query: Given = None, takes_long: bool = False) -> object:
        """Return the decoded answer; None if it has no content. `takes_long` multiplies the
        time limit by LONG_FACTOR, for answers that read a compute or recover a past moment."""
        timeout = settings.MANAGEMENT_API_TIMEOUT * (LONG_FACTOR if takes_long else 1)
        try:
            try:
                return self._call(_pooled, "GET", path, query=query, timeout=timeout)
            except BrokenOff:
                # The server may have closed a kept connection just now. Reading twice is safe.
                return self._call(_pooled, "GET", path, query=query, timeout=timeout)
        except Unreachable as problem:
            # This says nothing about a change that the page makes.
            problem.advice = problem.advice_to_readers or problem.advice
            raise

    def send(self, method: str, *path: str, query: Given = None, body: Given = None) -> object:
        """Send a change. Returns the decoded answer; None if it has no content. Raises OutOfDate
        for a page that is out of date, RequestShown if the change is only to be shown."""
        self.require_current()
        self.show_instead(method, path, query, body)
        # Use a fresh connection: if a kept one turned out to be closed, it would be unknown
        # whether the change took effect, and sending it again would not be safe.
        once = ""
        if self.once and method == "POST":
            # With another name, as after going back, the same form makes another thing.
            sent = json.dumps([path, query, body]).encode()
            once = f"{self.once}-{hashlib.sha256(sent).hexdigest()[:16]}"
        try:
            with closing(BoundedAdapter()) as fresh:
                return self._call(fresh, method, path, query=query, body=body, once=once)
        except (Refused, Unauthorized):
            self.once = ""
            raise

    def require_current(self) -> None:
        """Raise OutOfDate if the page that sends the request was made for an earlier sign-in. Also
        for changes that are made by other ways than this API."""
        if self.is_out_of_date and self._key:
            raise OutOfDate("You have signed in again since this page was loaded.")

    def show_instead(
        self, method: str, path: Sequence[str], query: Given = None, body: Given = None
    ) -> None:
        """Note the request and raise it as RequestShown, if it is only to be shown. One whose path
        cannot be sent is refused later, as without this."""
        if self.only_shows and UNSENDABLE.isdisjoint(path):
            self.shown = RequestShown(method, _address(path, query), body or {})
            raise self.shown

    def _request(
        self,
        method: str,
        path: Sequence[str],
        *,
        query: Given = None,
        body: Given = None,
        once: str = "",
    ) -> requests.PreparedRequest:
        """Prepare a request for an adapter. A `requests.Session` would also look for cookies, a
        .netrc file and redirects, none of which may be used, in more time than all else takes."""
        request = requests.PreparedRequest()
        request.method = method
        request.url = self._server.url + _address(path, query)
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip, deflate",
            "Authorization": f"Bearer {self._key}",
            # The id of the console's own request, so that one id can be searched for in both logs.
            # For a call outside of any request, the API chooses an id.
            "X-Request-ID": logs.current("request"),
            # An API that trusts this console notes the user's address, not the console's.
            "X-Forwarded-For": client_address.current(),
            # Only the API of the console's own service has its key.
            "Perch-Client-Address": ""
            if self._server.name
            else client_address.signed(settings.SECRET_KEY),
            "Idempotency-Key": once,
        }
        request.prepare_headers({name: value for name, value in headers.items() if value})
        request.prepare_body(None, None, json=body)
        return request

    def _call(
        self,
        adapter: BoundedAdapter,
        method: str,
        path: Sequence[str],
        *,
        query: Given = None,
        body: Given = None,
        once: str = "",
        timeout: float | None = None,
    ) -> object:
        if not self._key:
            raise Unauthorized("You are not signed in.")
        if self._too_slow:
            # One timeout is enough: the other calls of the same page do not wait for it again.
            raise self._too_slow
        if not UNSENDABLE.isdisjoint(path):
            raise NotFound("This name cannot be part of a request.", status=404)
        url, seconds = self._server.url + _address(path), timeout or settings.MANAGEMENT_API_TIMEOUT
        try:
            answer = adapter.send(
                self._request(method, path, query=query, body=body, once=once),
                stream=True,
                timeout=(min(5, settings.MANAGEMENT_API_TIMEOUT), seconds),
                **environment_for(self._server.url),
            )
            with answer:
                content = read_whole(answer)
        except TooLong as error:
            log.warning("API response too long", extra={"method": method, "url": url})
            raise NonsenseAnswer(f"The answer is {error}.", status=answer.status_code) from error
        except requests.Timeout as error:
            log.warning("API too slow", extra={"method": method, "url": url})
            kind = Unreachable if never_sent(error) else TooSlow
            self._too_slow = kind(f"No answer within {seconds:g} seconds.")
            raise self._too_slow from error
        except requests.RequestException as error:
            # Log the text of connection errors only. Other errors may quote a header with the key.
            words = str(error) if isinstance(error, requests.ConnectionError) else ""
            fields = {"method": method, "url": url, "kind": type(error).__name__, "error": words}
            log.warning("API unreachable", extra=fields)
            if never_sent(error):
                raise Unreachable(f"No connection to {self._server.url}.") from error
            raise BrokenOff(
                f"{self._server.url} closed the connection before the response was complete."
            ) from error
        is_good = answer.status_code < 300
        return result_of(
            answer.status_code, answer.reason, decoded(answer, content, is_needed=is_good)
        )


class Calls:
    """The calls of a part of the API. Every method raises an `APIError` if its call fails."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def _one(self, kind: type[R], name: str, *path: str) -> R:
        """Return what the answer has under a name."""
        return kind.read(one(self.transport.get(*path), name))

    def _list(self, kind: type[R], *path: str, query: Given = None) -> list[R]:
        """Return the list at a path, under the name that is the path's last part."""
        items = objects(self.transport.get(*path, query=query), path[-1])
        return [kind.read(item) for item in in_turns(items)]

    def _make(self, kind: type[R], name: str, *path: str, body: Given = None) -> R:
        """Send a POST. Returns what the answer has under a name."""
        return kind.read(one(self.transport.send("POST", *path, body=body), name))


_pooled = BoundedAdapter(pool_connections=4, pool_maxsize=32)


def _address(path: Sequence[str], query: Given = None) -> str:
    """Return the address below the server's; a query may have several values of one name."""
    address = "".join(f"/{quote(part, safe='')}" for part in path)
    return f"{address}?{urlencode(query, doseq=True)}" if query else address


@contextmanager
def may_be_missing(words: str) -> Generator[None]:
    """Raise NotOffered, with these words, if the call inside fails with 404 or 405. For a part of
    the API that not every server has."""
    try:
        yield
    except Refused as problem:
        if problem.status in (404, 405):
            raise NotOffered(words, status=problem.status) from problem
        raise
