"""Counts what is written to branches: by how far their write-ahead logs come."""

import logging

import psycopg
from django.db import connection

from controlplane.compute import observation

log = logging.getLogger(__name__)


def count_written(endpoint_id: str, branch_id: str) -> None:
    """Note what was written to the branch that the endpoint's compute runs on. Where that does not
    answer, the next look, after its next start perhaps, finds it."""
    try:
        note_written(branch_id, observation.written(endpoint_id, branch_id))
    except (psycopg.Error, observation.OtherBranch) as error:
        log.info("written bytes unknown", extra={"endpoint": endpoint_id, "error": str(error)})


def note_written(branch_id: str, written: observation.Written) -> None:
    """In one statement: whoever dies before it has counted nothing, and nobody counts it again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT perch_note_written(%s, %s, %s)", [branch_id, written.data, written.position]
        )
