"""An endpoint's metrics as the management API returns them. Only Perch has this call."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console.api.errors import NonsenseAnswer
from console.api.fields import JSONObject, moment, number, objects, whole

# The most points that are read of one answer. Perch returns no more.
MAX_POINTS = 1500


@dataclass(frozen=True)
class Point:
    """What the samples of one step add up to."""

    # The beginning of the step.
    at: datetime
    # How many samples there are: one for each minute in which the endpoint ran.
    samples: int
    _returned: JSONObject

    def value(self, name: str) -> float:
        """Return a metric by the API's name; 0 if the server does not report it."""
        return max(0.0, number(self._returned, name))


@dataclass(frozen=True)
class Metrics:
    """An endpoint's metrics from `since` to `until`. Steps in which it did not run are missing."""

    since: datetime
    until: datetime
    # Seconds.
    step: int
    # The oldest first.
    points: Sequence[Point]

    @classmethod
    def read(cls, data: JSONObject) -> "Metrics":
        since, until, step = moment(data, "from"), moment(data, "to"), whole(data, "step")
        if since is None or until is None or not step or since >= until:
            raise NonsenseAnswer("The response has no valid “from”, “to” and “step”.")
        read = [
            Point(at, whole(item, "samples") or 0, item)
            for item in objects(data, "points")[-MAX_POINTS:]
            if (at := moment(item, "at")) and since <= at < until
        ]
        return cls(since, until, step, sorted(read, key=lambda point: point.at))
