"""The JSON form of an event, which lists, streams and webhooks share."""

from datetime import UTC
from typing import Any

from controlplane.models import Event


def as_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object. Every field is always present, and null if it does not apply."""
    return {
        "id": str(event.id),
        "type": str(event.type),
        "project_id": event.project_id,
        "branch_id": event.branch_id,
        "endpoint_id": event.endpoint_id,
        "operation_ids": [str(operation_id) for operation_id in event.operation_ids],
        "actor": {
            "type": str(event.actor_type),
            "name": event.actor_name,
            "api_key_id": event.api_key_id,
            "address": event.address,
        },
        # In microseconds, so that the events of one second have an order.
        "at": event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "summary": event.summary,
        "changes": event.changes,
        "operation": event.operation,
    }


def as_message(event: Event) -> dict[str, Any]:
    """The message about the event for a webhook's receiver, in the form of Standard Webhooks."""
    shape = as_json(event)
    return {"type": shape["type"], "timestamp": shape["at"], "data": shape}
