"""Webhooks and their deliveries as the management API tells of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console.api_results import JSONObject, moment, number, required, text


@dataclass(frozen=True)
class Webhook:
    id: str
    url: str
    description: str
    # The one it is told of; "" for all of the account's.
    project_id: str
    # "*" for every type.
    event_types: Sequence[str]
    enabled: bool
    # Why the service has switched it off, in words; "" where it has not.
    disabled_reason: str
    created_at: datetime | None
    # Signs what is sent. Told once, when it is made.
    secret: str

    @classmethod
    def read(cls, data: JSONObject) -> "Webhook":
        types = data.get("event_types")
        return cls(
            id=required(data, "id"),
            url=text(data, "url"),
            description=text(data, "description"),
            project_id=text(data, "project_id"),
            event_types=[str(item) for item in types] if isinstance(types, list) else [],
            enabled=data.get("enabled") is True,
            disabled_reason=text(data, "disabled_reason"),
            created_at=moment(data, "created_at"),
            secret=text(data, "secret"),
        )


@dataclass(frozen=True)
class Delivery:
    id: str
    event_type: str
    status: str
    attempts: int
    # The receiver's; None where it has not answered.
    response_status: int | None
    # Why the last attempt failed, in words.
    error: str
    created_at: datetime | None
    attempted_at: datetime | None
    next_attempt_at: datetime | None

    @classmethod
    def read(cls, data: JSONObject) -> "Delivery":
        response_status = number(data, "response_status", -1)
        event = data.get("event")
        nested = text(event, "type") if isinstance(event, dict) else ""
        return cls(
            id=required(data, "id"),
            event_type=text(data, "event_type") or nested,
            status=text(data, "status"),
            attempts=int(number(data, "attempts")),
            response_status=int(response_status) if response_status >= 0 else None,
            error=text(data, "error"),
            created_at=moment(data, "created_at"),
            attempted_at=moment(data, "attempted_at"),
            next_attempt_at=moment(data, "next_attempt_at"),
        )
