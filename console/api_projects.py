"""The state of all projects of an account, which the management API returns in one answer."""

from dataclasses import dataclass

from console.api_results import JSONObject, inner, number, own_id


@dataclass(frozen=True)
class ProjectState:
    project_id: str
    active: int
    idle: int
    disabled: int
    unfinished_operations: int

    @classmethod
    def read(cls, data: JSONObject) -> "ProjectState":
        endpoints = inner(data, "endpoints")
        return cls(
            project_id=own_id(data, "project_id"),
            active=int(number(endpoints, "active")),
            idle=int(number(endpoints, "idle")),
            disabled=int(number(endpoints, "disabled")),
            unfinished_operations=int(number(data, "unfinished_operations")),
        )
