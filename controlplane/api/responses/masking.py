"""The response fields of masked branches."""

from typing import Any, Literal

from ninja import Schema

from controlplane.api.http.fields import Timestamp
from controlplane.services.masking import MaskingStatus


class AnonymizationRun(Schema):
    started_at: Timestamp
    completed_at: Timestamp | None = None
    masked_columns: int


class AnonymizedStatus(Schema):
    project_id: str
    branch_id: str
    state: Literal["initialized", "anonymizing", "anonymized", "error"]
    status_message: str
    created_at: Timestamp
    updated_at: Timestamp
    failed_at: Timestamp | None = None
    last_run: AnonymizationRun | None = None


class Attestation(Schema):
    attestation: dict[str, Any]


def status_of(status: MaskingStatus, branch_id: str) -> dict[str, Any]:
    run = status.run
    return {
        "project_id": status.masking.project_id,
        "branch_id": branch_id,
        "state": status.state,
        "status_message": status.message,
        "created_at": status.masking.created_at,
        "updated_at": max(status.masking.updated_at, (run or status.masking).updated_at),
        "failed_at": status.ended_at if status.state == "error" else None,
        "last_run": run
        and {
            "started_at": run.created_at,
            "completed_at": status.ended_at,
            "masked_columns": status.masked_columns,
        },
    }
