"""Detects changes at the management API: by its stream of events or, if the server has none, by
comparing what is cheap to read."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Final

from console.api.errors import APIError, NonsenseAnswer, NotFound
from console.api.fields import objects, text
from console.api.parallel import each_or_none, in_parallel
from console.api.transport import Transport

# Bytes. A longer line of the stream is no event of this API.
LONGEST_LINE: Final = 1 << 20
# How many operations of a project are compared. Every change of a project shows in its operations,
# endpoints or branches.
OPERATIONS_READ: Final = 10
# Types of events that record a read, which changes nothing. A page that says how to connect causes
# such an event itself.
OF_READING: Final = ("role.password_revealed",)
# Each look at an account reads the list of projects, and the endpoints of the next
# PROJECTS_AT_ONCE of them: servers limit the calls of a key. In an account with more projects, a
# change of an endpoint may be noticed only some looks later.
PROJECTS_READ, PROJECTS_AT_ONCE = 100, 8


class ChangeCalls:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.identity = transport.identity

    def follow(self, project_id: str) -> Iterator[bool]:
        """Yield for each piece of the stream whether it reports a change.

        The first piece means that no change is missed from then on. Raises an `APIError`,
        NotOffered if the server has no such stream.
        """
        path = ("projects", project_id, "events") if project_id else ("events",)
        rest = bytearray()
        for piece in self._transport.again().stream(*path):
            # Search only the new piece. Searching the whole line again for each piece would let a
            # server that sends single bytes occupy a processor.
            first, *others = piece.split(b"\n")
            rest += first
            if len(rest) > LONGEST_LINE:
                raise NonsenseAnswer("The stream of events has a line without end.")
            if others:
                lines = [bytes(rest), *others[:-1]]
                rest = bytearray(others[-1])
                yield any(map(_tells_of_change, lines))
            else:
                yield False

    def look(self, project_id: str, turn: int) -> dict[str, str]:
        """Return what the API says now, by the name of what was read: a digest of the answer, or
        the name of the error.

        `turn` is the number of the look; which projects are read depends on it. With a
        `project_id`, only that project is read. Raises NotFound if there is no such project.
        """
        transport = self._transport.again()

        def digest(*path: str, limit: int = 0) -> str:
            return _digest(lambda: transport.get(*path, query={"limit": limit} if limit else None))

        if project_id:
            own = ("projects", project_id)
            operations, endpoints, branches = in_parallel(
                lambda: digest(*own, "operations", limit=OPERATIONS_READ),
                lambda: digest(*own, "endpoints"),
                lambda: digest(*own, "branches"),
            )
            if {operations, endpoints, branches} == {NotFound.__name__}:
                raise NotFound("There is no such project.", status=404)
            return {"operations": operations, "endpoints": endpoints, "branches": branches}
        try:
            projects = transport.get("projects", query={"limit": PROJECTS_READ})
            named = (text(item, "id") for item in objects(projects, "projects"))
            ids = [one for one in named if one]
        except APIError as error:
            return {"projects": type(error).__name__}
        first = turn * PROJECTS_AT_ONCE % max(len(ids), 1)
        chosen = ids[first : first + PROJECTS_AT_ONCE]
        found = each_or_none(lambda one: digest("projects", one, "endpoints"), chosen)
        own_digests = {one: own for one, own in zip(chosen, found, strict=True) if own}
        return {"projects": _digest(lambda: projects), **own_digests}


def _tells_of_change(line: bytes) -> bool:
    if not line.startswith(b"data:"):
        return False
    try:
        event = json.loads(line.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return True
    return not (isinstance(event, dict) and event.get("type") in OF_READING)


def _digest(call: Callable[[], object]) -> str:
    try:
        answer = json.dumps(call(), sort_keys=True)
    except APIError as error:
        # While a server restarts, a reverse proxy in front of it may answer in its place.
        return type(error).__name__ if error.is_told else "untold"
    except RecursionError:
        # The answer is nested too deeply to be written as JSON again.
        return "untold"
    return hashlib.sha256(answer.encode()).hexdigest()
