"""How many requests an account and a key may send, counted for all processes of the API together.

The algorithm is GCRA, a token bucket that is one timestamp a rate: `burst` requests at once, then
one each `spacing` seconds. It is the one of redis-cell and, in Python, of throttled-py. Those keep
the timestamp in Redis, which Perch does not have; `limits`, the library most in use here, would
take a storage of ours but reads and writes it once for each rate, and would count a request in one
rate that the next one refuses. So the few lines of the algorithm are a function in the database
(`perch_take_turn`, migration 0017): one statement a request for all its rates, one clock, and
nothing counted of what is refused. Shares leased to each process would save the statement, but
would refuse in one process what another has left over; and accounts whose plan names no rate,
the embedded `local` one among them, pay nothing.

Asked only once the key is known to be good, so that strangers make no rows.
"""

import math
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from controlplane.models import Account, ApiKey
from controlplane.services.errors import ServiceError

PER_ROUTE = 40.0  # requests a second of one key
# Routes that cost more than others.
SLOWER_ROUTES = {"POST /api_keys": 10.0, "POST /organizations/<org_id>/api_keys": 10.0}


class RateLimited(ServiceError):
    """Too many requests were sent. Nothing was done; `retry_after` is in whole seconds, at least
    1."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Rate:
    """`burst` requests at once, then one each `spacing` seconds; `name` is whose it is."""

    name: str
    spacing: float
    burst: float
    words: str


def take_turn(key: ApiKey, *, route: str) -> None:
    """Count a request to the route, "GET /projects/<project_id>" for one. Raises RateLimited."""
    per_minute = _requests_per_minute(key.account)
    if per_minute is None:
        return
    per_second = SLOWER_ROUTES.get(route, PER_ROUTE)
    # In this order by everybody, as their rows are locked in it: an account's before its keys'.
    rates = [
        Rate(
            f"account {key.account_id}",
            60 / per_minute,
            per_minute,
            f"{per_minute} requests per minute for an account",
        ),
        Rate(
            f"key {key.id} {route}"[:255],
            1 / per_second,
            per_second,
            f"{per_second:g} requests per second for a key at one route",
        ),
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seconds, rate FROM perch_take_turn(%s::text[], %s, %s)",
            [
                [rate.name for rate in rates],
                [rate.spacing for rate in rates],
                [float(rate.burst) for rate in rates],
            ],
        )
        seconds, exceeded = cursor.fetchone()
    if exceeded:
        wait = max(1, math.ceil(seconds))
        raise RateLimited(
            f"rate limit exceeded: {rates[exceeded - 1].words}; try again in {wait} s",
            retry_after=wait,
        )


def _requests_per_minute(account: Account) -> int | None:
    """By the operator's setting where there is one, else by the plan; None for any number."""
    if settings.API_RATE_LIMIT is None:
        return account.limits.requests_per_minute
    return settings.API_RATE_LIMIT or None
