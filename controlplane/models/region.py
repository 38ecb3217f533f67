"""A region: where callers place projects. It has a name, an address and its hosts."""

from django.db import models


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Its address, published by its workers. It leads to the proxy of any of its hosts: each passes
    # clients on to the host of their endpoint. Endpoints are reached as `<endpoint_id>.<host>`.
    # Connection strings leave the port out if it is 5432.
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
