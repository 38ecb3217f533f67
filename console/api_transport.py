"""Carries the management API's calls over HTTP, and tells its failures apart."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote

import requests
from django.conf import settings
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from console import logs
from console.api_errors import (
    APIError,
    BrokenOff,
    NonsenseAnswer,
    NotFound,
    NotOffered,
    OutOfDate,
    TooSlow,
    Unauthorized,
    Unreachable,
    error_class,
)
from console.api_results import text
from console.bounded_http import (
    READ_AT_ONCE,
    BoundedAdapter,
    TooLong,
    never_sent,
    proxies_for,
    read_json,
    read_whole,
)
from console.servers import Server

log = logging.getLogger(__name__)

# What read_json raises; the second for what is nested too deep.
NOT_JSON = (ValueError, RecursionError)

EVENT_STREAM = "text/event-stream"
# Seconds without a byte of a stream: it says more often that it is there.
LONGEST_SILENCE = 40.0
# Characters of a refusal's words. They are looked through, shown, and kept in a cookie meanwhile.
LONGEST_MESSAGE = 1000
LONGEST_REQUEST_ID = 200
# What HTTP clients take for steps to another address, of a role that SQL has called so.
STEPS = frozenset((".", "..", ""))


class Transport:
    """Sends what one user asks of a server, with the user's key. Raises an `APIError` for every
    failure."""

    def __init__(self, key: str, server: Server) -> None:
        """Without a key nothing is sent: every call raises Unauthorized."""
        self._key = key
        self._auth = _Bearer(key)
        self._server = server
        self._too_slow: TooSlow | None = None
        # The page that asks is from before somebody signed in or out: it may look, and no more.
        self.is_out_of_date = False

    @property
    def identity(self) -> tuple[str, ...]:
        """Who asks whom: with the same, the same is seen."""
        return (self._server.url, self._key)

    def again(self) -> "Transport":
        """The same for another page, at which the server may be quick again."""
        return Transport(self._key, self._server)

    def get(self, *path: str, query: Mapping[str, str | int] | None = None) -> object:
        """The decoded answer; None where there is none."""
        try:
            return self._call(_pooled, "GET", path, query=query)
        except TooSlow:
            raise
        except Unreachable:
            # The server may have closed a kept connection just now; reading twice harms nobody.
            return self._call(_pooled, "GET", path, query=query)

    def send(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        once: str = "",
    ) -> object:
        """`once` is a key for this one wish: a server that knows such keys answers the second
        time as it did the first, and does nothing more."""
        self.require_current()
        # On a fresh connection: a change that meets a closed one could not safely be sent twice.
        with _session() as fresh:
            return self._call(fresh, method, path, query=query, body=body, once=once)

    def require_current(self) -> None:
        """Raises OutOfDate."""
        if self.is_out_of_date and self._key:
            raise OutOfDate("You have signed in anew since this page was made.")

    def stream(self, *path: str) -> Iterator[bytes]:
        """The pieces of an endless answer (server-sent events), as they come; silence is not
        waited for longer than LONGEST_SILENCE. Raises NotOffered where that is not the answer."""
        if not self._key:
            raise Unauthorized("You are not signed in.")
        url = self._url(path)
        try:
            with requests.Session() as session:
                answer = session.get(
                    url,
                    auth=self._auth,
                    headers={"Accept": EVENT_STREAM, "Accept-Encoding": "identity"},
                    timeout=(min(5, settings.MANAGEMENT_API_TIMEOUT), LONGEST_SILENCE),
                    allow_redirects=False,
                    proxies=proxies_for(url),
                    stream=True,
                )
                with answer:
                    if answer.status_code != 200:
                        refused = error_class(answer.status_code)
                        is_missing = answer.status_code in (404, 405, 406)
                        raise (NotOffered if is_missing else refused)("There is no stream.")
                    if not answer.headers.get("Content-Type", "").startswith(EVENT_STREAM):
                        raise NotOffered("The answer is no stream.")
                    while piece := answer.raw.read1(READ_AT_ONCE):
                        yield piece
        except (requests.RequestException, HTTPError, OSError) as error:
            raise Unreachable(f"No stream from {self._server.url}.") from error

    def _url(self, path: Sequence[str]) -> str:
        return "/".join([self._server.url, *(quote(part, safe="") for part in path)])

    def _call(
        self,
        session: requests.Session,
        method: str,
        path: Sequence[str],
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        once: str = "",
    ) -> object:
        if not self._key:
            raise Unauthorized("You are not signed in.")
        if self._too_slow:
            # Who has waited in vain once need not wait again for the same page.
            raise self._too_slow
        if not STEPS.isdisjoint(path):
            raise NotFound("Nothing of that name can be asked for.", status=404)
        url = self._url(path)
        # The page's own, so that both logs can be searched for it; what asks outside of any
        # page gets an id of the API's.
        request_id = logs.current("request") or None
        try:
            answer = session.request(
                method,
                url,
                params=query,
                json=body,
                auth=self._auth,
                headers={
                    "Accept": "application/json",
                    "X-Request-ID": request_id,
                    "Idempotency-Key": once or None,
                },
                timeout=(min(5, settings.MANAGEMENT_API_TIMEOUT), settings.MANAGEMENT_API_TIMEOUT),
                allow_redirects=False,
                proxies=proxies_for(url),
                stream=True,
            )
            with answer:
                content = read_whole(answer)
        except TooLong as error:
            log.warning("API talks too much", extra={"method": method, "url": url})
            raise NonsenseAnswer(f"The answer is {error}.", status=answer.status_code) from error
        except requests.Timeout as error:
            log.warning("API too slow", extra={"method": method, "url": url})
            seconds = settings.MANAGEMENT_API_TIMEOUT
            self._too_slow = TooSlow(f"No answer within {seconds:g} seconds.")
            raise self._too_slow from error
        except requests.RequestException as error:
            # Only where no connection came about; other words may quote a header, and the key.
            words = str(error) if isinstance(error, requests.ConnectionError) else ""
            fields = {"method": method, "url": url, "kind": type(error).__name__, "error": words}
            log.warning("API unreachable", extra=fields)
            if never_sent(error):
                raise Unreachable(f"No connection to {self._server.url}.") from error
            raise BrokenOff(f"{self._server.url} closed it before its answer was whole.") from error
        if answer.ok and answer.status_code < 300:
            return _json(answer, content)
        raise _refusal(answer, content)


class _Bearer(AuthBase):
    """As an auth object, because requests lets a .netrc file win over a mere header."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def _session() -> requests.Session:
    session = requests.Session()
    # Sessions are shared by users: nothing of one may reach the other.
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    adapter = BoundedAdapter(pool_connections=4, pool_maxsize=32)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


_pooled = _session()


def _json(answer: requests.Response, content: bytes) -> object:
    if answer.status_code == 204:
        # Newer servers say so when what was to be deleted is already gone.
        return None
    try:
        data: object = read_json(content)
    except NOT_JSON as error:
        url = answer.url.partition("?")[0]
        log.warning("API talks nonsense", extra={"url": url, "status": answer.status_code})
        raise NonsenseAnswer("The answer is not JSON.", status=answer.status_code) from error
    return data


def _refusal(answer: requests.Response, content: bytes) -> APIError:
    try:
        body = read_json(content)
    except NOT_JSON:
        body = None
    data: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    message = text(data, "message") or f"The answer was {answer.status_code} {answer.reason}."
    refusal = error_class(answer.status_code)(
        message[:LONGEST_MESSAGE],
        status=answer.status_code,
        request_id=text(data, "request_id")[:LONGEST_REQUEST_ID],
    )
    refusal.is_told = isinstance(body, Mapping)
    return refusal
