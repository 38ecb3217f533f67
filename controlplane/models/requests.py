"""What is stored about requests to the API: the answers to requests with an idempotency key, and
the request rates of accounts and keys."""

from django.db import models

from controlplane import clock
from controlplane.models.account import ApiKey


class IdempotentRequest(models.Model):
    """A request with an `Idempotency-Key`, and its answer; see `services.rules.idempotency`.

    Written in the transaction of the change itself, so the change and the answer are stored
    together or not at all.
    """

    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    # SHA-256 of the request: method, URL and body.
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    # The body, encrypted, because it may contain passwords and API keys.
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
    """How far the requests of an account, or of a key at one route, are ahead of their rate. Only
    `perch_take_turn` (migration 0017) writes it.

    The table is UNLOGGED: after a crash of Postgres it is empty, and all rates start anew.
    """

    # `account <id>`, or `key <id> <route>`.
    name = models.CharField(primary_key=True, max_length=255)
    # When the last request would have been served if all were served at the rate's spacing.
    free_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
