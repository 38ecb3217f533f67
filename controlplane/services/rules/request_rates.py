"""Limits how many requests an account and a key may send, in all processes of the API together.

The algorithm is GCRA, a token bucket that stores one timestamp for each rate: `burst` requests at
once, then one every `spacing` seconds. redis-cell and, in Python, throttled-py use it too, but they
store the timestamp in Redis, which Perch does not have. `limits`, the most used Python library for
this, accepts a custom storage, but reads and writes it once for each rate, and counts a request in
one rate even if the next rate refuses it. Therefore the few lines of the algorithm are a function
in the database (`perch_take_turn`, migration 0001_squashed_0029): each request takes one statement
for all its rates, there is one clock, and refused requests are not counted. Leasing a share of the
rate to each process would save the statement, but one process would refuse requests while another
has some of its share left. For accounts whose plan has no limit, such as the embedded `local` one,
no statement is executed.

The caller must authenticate the key first, so that untrusted clients cannot create rows.
"""

import math
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from controlplane.models import Account, ApiKey
from controlplane.services.errors import ServiceError

REQUESTS_PER_SECOND = 40.0  # requests per second with one key
# Requests per second with one key at routes that cost more than others.
SLOWER_ROUTES = {"POST /api_keys": 10.0, "POST /organizations/<org_id>/api_keys": 10.0}


class RateLimited(ServiceError):
    """Too many requests were sent. Nothing was done. `retry_after` is in whole seconds, at least
    1."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Rate:
    """A rate: `burst` requests at once, then one every `spacing` seconds. `name` is the primary key
    of its row; `words` describes the rate in messages."""

    name: str
    spacing: float
    burst: float
    words: str


def admit_request(key: ApiKey, *, route: str) -> None:
    """Count a request with the key to the route, such as "GET /projects/<project_id>". Raises
    RateLimited."""
    per_minute = _requests_per_minute(key.account)
    if per_minute is None:
        return
    per_second = SLOWER_ROUTES.get(route, REQUESTS_PER_SECOND)
    # The rows are locked in this order, which must be the same for all requests to avoid deadlocks:
    # the account's before its keys'.
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
    """The operator's setting if there is one, else the plan's limit; None for no limit."""
    if settings.API_RATE_LIMIT is None:
        return account.limits.requests_per_minute
    return settings.API_RATE_LIMIT or None
