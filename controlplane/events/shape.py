"""An event as all who read it get it: the lists, the streams and the webhooks."""

from datetime import UTC
from typing import Any

from controlplane.models import Event


def as_json(event: Event) -> dict[str, Any]:
    """The event's JSON object: every field is always there, null where it has nothing to say."""
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
        # To the microsecond: events of one second have an order.
        "at": event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "summary": event.summary,
        "changes": event.changes,
    }


def as_message(event: Event) -> dict[str, Any]:
    """What a webhook's receiver gets of it, as Standard Webhooks has it."""
    shape = as_json(event)
    return {"type": shape["type"], "timestamp": shape["at"], "data": shape}
