"""The secret keys that values are encrypted with, by fingerprint (`database.secret_keys`)."""

from django.db import models
from django.db.models.functions import Now


class SecretKey(models.Model):
    """A secret key that a process has used. Values may be encrypted with each key that is not
    retired, so a process that lacks one of them does not start."""

    fingerprint = models.CharField(primary_key=True, max_length=32)
    since = models.DateTimeField(db_default=Now())
    # When nothing was encrypted with it any more; null for the present key.
    retired_at = models.DateTimeField(null=True)
    # Of a retired key: the key derived from it that older objects of the history's store are
    # encrypted with, itself encrypted with the present key.
    history_key = models.TextField(default="", db_default="")

    def __str__(self) -> str:
        return self.fingerprint

    @classmethod
    def encrypted_history_keys(cls) -> list[str]:
        """Those of the retired keys."""
        return list(cls.objects.exclude(history_key="").values_list("history_key", flat=True))
