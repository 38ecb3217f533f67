"""Short forms for the indexes and constraints of tables. `where` are the values of columns, as for
a filter, that the rows have to which they apply."""

from collections.abc import Sequence
from typing import Any

from django.db import models

LIVING: dict[str, Any] = {"deleted_at": None}
DELETED: dict[str, Any] = {"deleted_at__isnull": False}


def index(name: str, *fields: str, include: Sequence[str] = (), **where: Any) -> models.Index:
    return models.Index(name=name, fields=fields, include=include or None, condition=_q(where))


def unique(name: str, *fields: str, **where: Any) -> models.UniqueConstraint:
    return models.UniqueConstraint(name=name, fields=fields, condition=_q(where))


def one_of(name: str, field: str, *values: str) -> models.CheckConstraint:
    """The values that a column may have."""
    return models.CheckConstraint(name=name, condition=models.Q((f"{field}__in", [*values])))


def _q(where: dict[str, Any]) -> models.Q | None:
    return models.Q(**where) if where else None
