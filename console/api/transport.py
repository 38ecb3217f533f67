"""Sends the management API's calls over HTTP, and turns each failure into its own exception."""

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import requests
from django.conf import settings
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from console import client_address, logs
from console.api import batches
from console.api.answers import decoded, result_of
from console.api.bounded_http import (
    READ_AT_ONCE,
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
    error_class,
)
from console.api.fields import objects, whole
from console.api.servers import Server

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
# Seconds. A server sends something more often than this, even if only a keep-alive.
LONGEST_SILENCE = 40.0
# Some answers may take this many times as long as usual. Perch itself gives them up after 60 s.
LONG_FACTOR = 5
# Path segments that HTTP clients resolve or drop, so that the request would go to another address.
# SQL can give a role such a name.
UNSENDABLE = frozenset((".", "..", ""))


ONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_once() -> str:
    """Return a value for the field `once` of a form."""
    return secrets.token_urlsafe(16)


class Transport:
    """Sends one user's requests to one server, with the user's key. Raises an `APIError` for every
    failure."""

    def __init__(
        self, key: str, server: Server, *, has_batches: bool = False, once: str = ""
    ) -> None:
        """Without a key nothing is sent: every call then raises Unauthorized. `has_batches` says
        whether the server may have the call `/batch`."""
        # Of the form whose request this is; "" for none. It is part of the idempotency keys, so
        # that a form that is sent twice makes one thing. It changes if the server refuses, as it
        # would repeat its refusal; if no answer arrived, the request may have taken effect.
        self.once = once if ONCE.fullmatch(once) else ""
        self._key = key
        self._server = server
        self._has_batches = has_batches
        self._too_slow: Unreachable | None = None
        # True if the page that sends the request was made before the last sign-in or sign-out.
        # Such a page may read, but not change anything.
        self.is_out_of_date = False
        # True if a change is not sent but noted in `shown`.
        self.only_shows = False
        self.shown: RequestShown | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """The server and the key. Transports with the same identity see the same data."""
        return (self._server.url, self._key)

    def again(self) -> "Transport":
        """Return a transport with the same key and server that does not remember a timeout."""
        return Transport(self._key, self._server, has_batches=self._has_batches)

    def get(
        self,
        *path: str,
        query: Mapping[str, str | int] | None = None,
        takes_long: bool = False,
    ) -> object:
        """Return the decoded answer; None if it has no content. `takes_long` multiplies the
        time limit by LONG_FACTOR, for answers that read a compute or recover a past moment."""
        within = settings.MANAGEMENT_API_TIMEOUT * (LONG_FACTOR if takes_long else 1)
        beside = batches.present()
        is_sendable = bool(self._key) and UNSENDABLE.isdisjoint(path)
        if beside and is_sendable and not takes_long and self.answers_in_order():
            answer = beside.get(_address(path, query), self._get_batch)
            if answer is not None:
                return result_of(answer.status, "", answer.body)
        batches.leave()
        return self._get_alone(path, query, within)

    def _get_alone(
        self, path: Sequence[str], query: Mapping[str, Any] | None, within: float
    ) -> object:
        try:
            try:
                return self._call(_pooled, "GET", path, query=query, within=within)
            except BrokenOff:
                # The server may have closed a kept connection just now. Reading twice is safe.
                return self._call(_pooled, "GET", path, query=query, within=within)
        except Unreachable as problem:
            # This says nothing about a change that the page makes.
            problem.advice = problem.advice_to_readers or problem.advice
            raise

    def answers_in_order(self) -> bool:
        """Whether the requests of parallel calls are sent together, as far as is known, and then
        answered in the order of the calls."""
        return self._has_batches and batches.may_have_batches(self._server.url)

    def _get_batch(self, paths: Sequence[str]) -> Sequence[batches.Answer]:
        try:
            data = self._get_alone(
                ("batch",), {"path": paths}, within=settings.MANAGEMENT_API_TIMEOUT
            )
            answers = [
                batches.Answer(status, one.get("body"))
                for one in objects(data, "responses")
                if (status := whole(one, "status"))
            ]
            if len(answers) == len(paths):
                return answers
        except NonsenseAnswer:
            # The server means something else by this address.
            pass
        except Refused as problem:
            # 414: something between the two accepts only short addresses.
            if problem.status not in (404, 405, 414):
                raise
        batches.note_lack(self._server.url)
        return ()

    def send(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> object:
        """Send a change. Returns the decoded answer; None if it has no content. Raises OutOfDate
        for a page that is out of date, RequestShown if the change is only to be shown."""
        self.require_current()
        self.show_instead(method, path, query, body)
        batches.leave()
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
        except Refused:
            self.once = ""
            raise

    def require_current(self) -> None:
        """Raise OutOfDate if the page that sends the request was made for an earlier sign-in."""
        if self.is_out_of_date and self._key:
            raise OutOfDate("You have signed in again since this page was loaded.")

    def show_instead(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        """Note the request and raise it as RequestShown, if it is only to be shown. One whose path
        cannot be sent is refused later, as without this."""
        if self.only_shows and UNSENDABLE.isdisjoint(path):
            self.shown = RequestShown(method, _address(path, query), body or {})
            raise self.shown

    def stream(self, *path: str) -> Iterator[bytes]:
        """Yield the pieces of an endless answer (server-sent events) as they arrive.

        Raises NotOffered if the answer is no such stream, Unreachable if the connection fails or
        is silent for LONGEST_SILENCE.
        """
        if not self._key:
            raise Unauthorized("You are not signed in.")
        try:
            with closing(HTTPAdapter()) as adapter:
                answer = adapter.send(
                    self._request("GET", path, accept=EVENT_STREAM, encoding="identity"),
                    timeout=(min(5, settings.MANAGEMENT_API_TIMEOUT), LONGEST_SILENCE),
                    stream=True,
                    **environment_for(self._server.url),
                )
                with answer:
                    if answer.status_code != 200:
                        refused = error_class(answer.status_code)
                        is_missing = answer.status_code in (404, 405, 406)
                        raise (NotOffered if is_missing else refused)("No event stream.")
                    if not answer.headers.get("Content-Type", "").startswith(EVENT_STREAM):
                        raise NotOffered("The response is not a stream.")
                    while piece := answer.raw.read1(READ_AT_ONCE):
                        yield piece
        except (requests.RequestException, HTTPError, OSError) as error:
            raise Unreachable(f"No stream from {self._server.url}.") from error

    def _request(
        self,
        method: str,
        path: Sequence[str],
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        once: str = "",
        accept: str = "application/json",
        encoding: str = "gzip, deflate",
    ) -> requests.PreparedRequest:
        """Prepare a request for an adapter. A `requests.Session` would also look for cookies, a
        .netrc file and redirects, none of which may be used, in more time than all else takes."""
        request = requests.PreparedRequest()
        request.method = method
        request.url = self._server.url + _address(path, query)
        headers = {
            "Accept": accept,
            "Accept-Encoding": encoding,
            "Authorization": f"Bearer {self._key}",
            # The id of the console's own request, so that one id can be searched for in both logs.
            # For a call outside of any request, the API chooses an id.
            "X-Request-ID": logs.current("request"),
            # An API that trusts this console notes the user's address, not the console's.
            "X-Forwarded-For": client_address.current(),
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
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        once: str = "",
        within: float | None = None,
    ) -> object:
        if not self._key:
            raise Unauthorized("You are not signed in.")
        if self._too_slow:
            # One timeout is enough: the other calls of the same page do not wait for it again.
            raise self._too_slow
        if not UNSENDABLE.isdisjoint(path):
            raise NotFound("This name cannot be part of a request.", status=404)
        url, seconds = self._server.url + _address(path), within or settings.MANAGEMENT_API_TIMEOUT
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


_pooled = BoundedAdapter(pool_connections=4, pool_maxsize=32)


def _address(path: Sequence[str], query: Mapping[str, Any] | None = None) -> str:
    """Return the address below the server's; a query may have several values of one name."""
    address = "".join(f"/{quote(part, safe='')}" for part in path)
    return f"{address}?{urlencode(query, doseq=True)}" if query else address


@contextmanager
def may_be_missing(words: str) -> Generator[None]:
    """Raise NotOffered, with these words, if the call inside fails with 404 or 405.

    For a part of the API that not every server has.
    """
    try:
        yield
    except Refused as problem:
        if problem.status in (404, 405):
            raise NotOffered(words, status=problem.status) from problem
        raise
