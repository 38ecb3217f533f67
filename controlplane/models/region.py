"""A region: where callers place projects. It has a name, an address and its hosts."""

from django.db import models


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Its address: the host name and port of the proxy of its only host. With several hosts, each
    # has an address of its own (`models.Host`).
    host = models.CharField(max_length=200)
    port = models.PositiveIntegerField(default=5432)
    default = models.BooleanField(default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="one_default_region", fields=["default"], condition=models.Q(default=True)
            ),
        )

    def __str__(self) -> str:
        return self.id
