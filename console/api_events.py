"""Events as the management API tells of them: who did what, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.actors import Actor
from console.api_results import IDENTIFIER, JSONObject, identifier, moment, own_id, text


@dataclass(frozen=True)
class Event:
    id: str
    type: str
    # One sentence, for people.
    summary: str
    actor: Actor | None
    at: datetime | None
    project_id: str
    branch_id: str
    endpoint_id: str
    operation_ids: Sequence[str]
    # By field, {"from": …, "to": …}.
    changes: Mapping[str, Any]

    @classmethod
    def read(cls, data: JSONObject) -> "Event":
        changes = data.get("changes")
        operation_ids = data.get("operation_ids")
        return cls(
            id=own_id(data),
            type=text(data, "type"),
            summary=text(data, "summary"),
            actor=Actor.read(data.get("actor")),
            at=moment(data, "at"),
            project_id=identifier(data, "project_id"),
            branch_id=identifier(data, "branch_id"),
            endpoint_id=identifier(data, "endpoint_id"),
            operation_ids=[
                item
                for item in (operation_ids if isinstance(operation_ids, list) else [])
                if isinstance(item, str) and IDENTIFIER.fullmatch(item)
            ],
            changes=changes if isinstance(changes, Mapping) else {},
        )
