"""Whether anything has changed at the management API: told by its stream of events where it has
one, and otherwise by looking at what is cheap to read."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Final

from console.api_errors import APIError, NonsenseAnswer, NotFound
from console.api_results import objects, text
from console.api_transport import Transport
from console.side_by_side import each_or_none, side_by_side

# Of a stream, bytes of a line: more is no event of this API.
LONGEST_LINE: Final = 1 << 20
# What is looked at of a project: any change shows in one of them.
OPERATIONS_READ: Final = 10
# Events of what was only read, which changes nothing: a page that says how to connect makes one
# itself.
OF_READING: Final = ("role.password_revealed",)
# Of an account, at each look: the list of projects, and the endpoints of so many of them in turn,
# as servers bound the calls of a key. What happens to an endpoint of one of more is seen later.
PROJECTS_READ, PROJECTS_AT_ONCE = 100, 8


class ChangeCalls:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.identity = transport.identity

    def follow(self, project_id: str) -> Iterator[bool]:
        """Each piece of the stream as it comes: whether it tells of a change, or only that the
        stream goes on. The first says that from here on no change is missed.

        Raises an `APIError`, NotOffered where there is no such stream.
        """
        path = ("projects", project_id, "events") if project_id else ("events",)
        rest = bytearray()
        for piece in self._transport.again().stream(*path):
            # Only the piece is looked through: all of a line again with each of its bytes would
            # take a processor for as long as a server likes.
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
        """What is told, by what was asked: a digest of it, or of how it failed. `turn` counts
        the looks; not each of them asks the same. Raises NotFound where there is no such project.
        """
        transport = self._transport.again()

        def digest(*path: str, limit: int = 0) -> str:
            return _digest(lambda: transport.get(*path, query={"limit": limit} if limit else None))

        if project_id:
            own = ("projects", project_id)
            operations, endpoints, branches = side_by_side(
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
        # What stands before a server that is being started anew may answer in its place.
        return type(error).__name__ if error.is_told else "untold"
    except RecursionError:
        # Nested deeper than can be written again.
        return "untold"
    return hashlib.sha256(answer.encode()).hexdigest()
