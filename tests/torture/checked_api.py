"""The API for the actors: every answer is checked before it is used."""

import time
from dataclasses import dataclass
from typing import Any

import requests

from tests.support.client import ENDED
from tests.support.project import refusal
from tests.support.waiting import load
from tests.torture.actor import Actor
from tests.torture.world import SeenOperation

# Seconds on an idle machine; no process is stopped for this long. On a busy one, starting the API
# alone may take as long.
ANSWER_TIMEOUT = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any

    @property
    def ok(self) -> bool:
        return self.status < 400


class CheckedApi:
    """The client of an account, for one actor."""

    def __init__(self, actor: Actor, key: str) -> None:
        self.actor = actor
        self.journal = actor.world.journal
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {key}"

    def call(self, method: str, path: str, body: Any = None) -> Answer | None:
        """Send the request. Returns None without an answer, because a process was killed or is
        starting."""
        asked_at = time.monotonic()
        self.actor.does(f"{method} {path}")
        url = self.actor.world.service.stack.api_url + path
        timeout = ANSWER_TIMEOUT * load()
        try:
            response = self.session.request(method, url, json=body, timeout=timeout)
            content = response.json()
        except requests.ReadTimeout:
            self.journal.broken("the API answers", f"{method} {path} in {timeout:.0f} s")
            return None
        except requests.RequestException as error:
            self.journal.count("requests", "unanswered")
            if method != "GET":
                self._note(method, path, body, asked_at, error=type(error).__name__)
            return None
        self._check(response, f"{method} {path}")
        self.journal.count("requests", str(response.status_code))
        if method != "GET" or not response.ok:
            self._note(method, path, body, asked_at, **_gist(response, content))
        if response.ok:
            self._see(content, asked_at)
        return Answer(response.status_code, content)

    def get(self, path: str) -> Any:
        """Return the body of a successful answer, else None."""
        answer = self.call("GET", path)
        return answer.body if answer and answer.ok else None

    def _check(self, response: requests.Response, request: str) -> None:
        if response.ok:
            return
        told = f"{request}: {response.status_code} {response.text[:500]}"
        if response.status_code >= 500 and response.status_code != 503:
            self.journal.broken("the API answers no 5xx but 503", told)
        try:
            refusal(response)
        except (AssertionError, KeyError, ValueError):
            self.journal.broken("every error has the API's shape", told)

    def _see(self, content: Any, asked_at: float) -> None:
        """Compare the operations in the answer with those in earlier answers."""
        told = [*content.get("operations", ()), *filter(None, [content.get("operation")])]
        known = self.actor.world.operations
        for row in told:
            before = known.get(row["id"])
            # An answer to a request that was sent before an earlier answer came may be older than
            # that.
            if before is None or asked_at > before.at:
                known[row["id"]] = SeenOperation(time.monotonic(), row["status"], row["updated_at"])
                if before:
                    self._compare(row, before)

    def _compare(self, row: Any, before: SeenOperation) -> None:
        said = f"{row['id']} {row['action']}: {before} and then {row}"
        if before.status in ENDED and row["status"] != before.status:
            self.journal.broken("a terminal status never changes", said)
        if row["updated_at"] < before.updated_at:
            self.journal.broken("updated_at never goes back", said)

    def _note(self, method: str, path: str, body: Any, asked_at: float, **came: Any) -> None:
        ms = round((time.monotonic() - asked_at) * 1000)
        self.actor.note(f"{method} {path}", body=body, ms=ms, **came)


def _gist(response: requests.Response, content: Any) -> dict[str, Any]:
    """Return what the journal stores of an answer."""
    gist: dict[str, Any] = {
        "status": response.status_code,
        "request": response.headers.get("x-neon-ret-request-id"),
    }
    if not response.ok:
        return {**gist, "message": content.get("message")}
    for kind in ("project", "branch", "endpoint"):
        if kind in content:
            gist[kind] = content[kind]["id"]
    if "operations" in content:
        gist["operations"] = [f"{row['id']} {row['action']}" for row in content["operations"]]
    return gist
