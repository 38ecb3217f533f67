"""Counts the bytes written to branches, by the positions of their write-ahead logs."""

import logging

import psycopg
from django.db import connection

from controlplane.compute import observation

log = logging.getLogger(__name__)


def count_written(endpoint_id: str, branch_id: str) -> None:
    """Count what was written to the branch that the endpoint's compute runs on. If the compute does
    not answer, a later count includes it, perhaps after the compute's next start."""
    try:
        note_written(branch_id, observation.written(endpoint_id, branch_id))
    except (psycopg.Error, observation.OtherBranch) as error:
        log.info("written bytes unknown", extra={"endpoint": endpoint_id, "error": str(error)})


def note_written(branch_id: str, written: observation.Written) -> None:
    """Count in one statement, so that a crash neither loses bytes nor counts them twice."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT perch_note_written(%s, %s, %s)", [branch_id, written.data, written.position]
        )
