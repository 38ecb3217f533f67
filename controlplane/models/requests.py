"""What is kept of requests to the API: the answers that a second one would get again, and how
often each account and key has asked."""

from django.db import models

from controlplane import clock
from controlplane.models.account import ApiKey


class IdempotentRequest(models.Model):
    """A request with an `Idempotency-Key`, and its answer; see `services.idempotency`.

    Written in the transaction of the change itself: who sees the row sees the answer too.
    """

    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    # SHA-256 of what was asked: method, address and body.
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    # The body, encrypted: it may hold passwords and API keys.
    answer = models.TextField()
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="one_request_of_a_key", fields=["api_key", "key"]),
        )
        indexes = (models.Index(name="idempotent_requests_by_age", fields=["created_at"]),)

    def __str__(self) -> str:
        return self.key


class RequestRate(models.Model):
    """How far ahead of its rate somebody is; written by `perch_take_turn` (migration 0017) alone.

    Not logged: after a crash of Postgres all begin anew.
    """

    # Whose: `account 7`, or a key with a route.
    name = models.CharField(primary_key=True, max_length=255)
    # When all that was asked would have been served at the rate's own pace.
    free_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
