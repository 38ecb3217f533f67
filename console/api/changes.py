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
READ_EVENTS: Final = ("role.password_revealed",)
# Servers limit the calls of a key. Each look at an account therefore reads the list of projects,
# but the endpoints of only the next PROJECTS_AT_ONCE of them. In an account with more projects, it
# may take several looks to notice a change of an endpoint.
PROJECTS_READ, PROJECTS_AT_ONCE = 100, 8


class ChangeCalls:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.identity = transport.identity

    def follow(self, project_id: str) -> Iterator[bool]:
        """For each piece of the stream, yield whether it reports a change.

        Once the first piece has arrived, no later change is missed. Raises an `APIError`, which is
        NotOffered if the server has no such stream.
        """
        path = ("projects", project_id, "events") if project_id else ("events",)
        unfinished_line = bytearray()
        for piece in self._transport.again().stream(*path):
            # Search only the new piece. Searching the whole line again for each piece would let a
            # server that sends single bytes occupy a processor.
            first, *others = piece.split(b"\n")
            unfinished_line += first
            if len(unfinished_line) > LONGEST_LINE:
                raise NonsenseAnswer("The stream of events has a line without end.")
            if others:
                lines = [bytes(unfinished_line), *others[:-1]]
                unfinished_line = bytearray(others[-1])
                yield any(map(_tells_of_change, lines))
            else:
                yield False

    def look(self, project_id: str, turn: int) -> dict[str, str]:
        """Read what the API returns now. For the name of each thing that was read, the result has a
        digest of the answer, or the name of the error.

        `turn` is the number of the look, which decides which projects are read. With a
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
    return not (isinstance(event, dict) and event.get("type") in READ_EVENTS)


def _digest(call: Callable[[], object]) -> str:
    try:
        answer = json.dumps(call(), sort_keys=True)
    except APIError as error:
        # While a server restarts, a reverse proxy in front of it may answer in its place, with
        # different errors. All of these count as the same answer.
        return type(error).__name__ if error.is_told else "untold"
    except RecursionError:
        # The answer is nested too deeply to be written as JSON again.
        return "untold"
    return hashlib.sha256(answer.encode()).hexdigest()
