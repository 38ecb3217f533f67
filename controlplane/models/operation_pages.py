"""The pages of a project's operations that a filter selects, newest first.

Each index for them (see `Operation.Meta`) has the columns of a kind (action, status and type of
initiator), then the time. So the newest operations of one kind are read in order, however many
operations there are. For several kinds, the newest of each are read and merged. If the filter does
not restrict one of the columns, each of its possible values is a kind to merge. The keys are read
from the indexes alone; full rows are read only for the page.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from controlplane.actors import ActorType
from controlplane.models.operation import Action, Operation, OperationStatus
from controlplane.models.reading import Reading

TABLE = Operation._meta.db_table
# The column that each field of OperationFilter restricts.
COLUMNS: Mapping[str, str] = {
    "endpoint_ids": "endpoint_id",
    "branch_ids": "branch_id",
    "chain_ids": "chain",
    "actions": "action",
    "statuses": "status",
    "initiators": "initiator_type",
}
KINDS: Mapping[str, Sequence[str]] = {
    "actions": Action.values,
    "statuses": OperationStatus.values,
    "initiators": [str(one) for one in ActorType],
}
PAGE = """
SELECT {columns} FROM {table} o
WHERE o.project_id = %(project)s AND {wanted}
    AND o.created_at IN (
        SELECT one.created_at FROM {kinds}
        CROSS JOIN LATERAL (
            SELECT key.created_at FROM {table} key WHERE {of_kind} AND {in_time}
            ORDER BY key.created_at DESC LIMIT %(limit)s
        ) one
        ORDER BY one.created_at DESC LIMIT %(limit)s
    )
ORDER BY o.created_at DESC LIMIT %(limit)s
"""
# A chain has few operations, so they are read first and then filtered.
OF_CHAINS = """
WITH o AS MATERIALIZED (SELECT {columns} FROM {table} o WHERE o.chain = ANY(%(chain_ids)s))
SELECT {columns} FROM o
WHERE o.project_id = %(project)s AND {wanted} AND {in_time}
ORDER BY o.created_at DESC LIMIT %(limit)s
"""


FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)
LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
PLAIN_PAGE = Reading(
    Operation,
    """
    WHERE t.project_id = %(project)s
        AND t.created_at >= %(since)s AND t.created_at < %(until)s
    ORDER BY t.created_at DESC LIMIT %(limit)s
    """,
    without=["steps"],
)


@dataclass(frozen=True)
class OperationFilter:
    """Selects operations: for each field, those that have one of its values; an empty field does
    not restrict them.

    `since` is the earliest time of creation, inclusive; `until` is the latest, exclusive.
    """

    actions: Collection[str] = ()
    statuses: Collection[str] = ()
    initiators: Collection[str] = ()
    endpoint_ids: Collection[str] = ()
    branch_ids: Collection[str] = ()
    chain_ids: Collection[UUID] = ()
    since: datetime | None = None
    until: datetime | None = None

    def before(self, moment: datetime) -> "OperationFilter":
        """This filter, restricted to operations created before `moment`."""
        return replace(self, until=min(moment, self.until or moment))

    @property
    def given(self) -> dict[str, list[Any]]:
        """The values of the fields that are not empty, by field."""
        return {name: list(values) for name in COLUMNS if (values := getattr(self, name))}


def chains_of(operations: Collection[Operation]) -> list[Operation]:
    """Read all operations of these operations' chains, newest first. All are of one project."""
    chains = OperationFilter(chain_ids={operation.chain for operation in operations})
    return page_of(next(iter(operations)).project_id, chains, limit=None) if operations else []


def page_of(project_id: str, wanted: OperationFilter, *, limit: int | None) -> list[Operation]:
    """Read the newest operations of the project that the filter selects, newest first, without
    their steps: at most `limit`, or all if that is None."""
    given = wanted.given
    if not given:
        return PLAIN_PAGE.rows(
            project=project_id,
            since=wanted.since or FIRST_MOMENT,
            until=wanted.until or LAST_MOMENT,
            limit=limit,
        )
    values: dict[str, Any] = {
        **KINDS,
        **given,
        "project": project_id,
        "limit": limit,
        "since": wanted.since,
        "until": wanted.until,
    }
    columns = [one.column for one in Operation._meta.concrete_fields if one.name != "steps"]
    sql = (OF_CHAINS if wanted.chain_ids else PAGE).format(
        table=TABLE,
        columns=", ".join(f"o.{column}" for column in columns),
        wanted=" AND ".join(f"o.{COLUMNS[name]} = ANY(%({name})s)" for name in given),
        in_time=_in_time(wanted, "o" if wanted.chain_ids else "key"),
        **_kinds(given),
    )
    return list(Operation.objects.raw(sql, values))


def _kinds(given: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Parts of the SQL text PAGE: `kinds` lists the kinds to merge, and `of_kind` selects the keys
    of one of them by the leading columns of an index, so that they are read in order."""
    of_kind = []
    if "endpoint_ids" in given:
        merged, place = ["endpoint_ids"], "endpoint_ids"
    elif "branch_ids" in given:
        merged, place = ["branch_ids"], "branch_ids"
    else:
        merged, place = [], ""
        of_kind.append("key.project_id = %(project)s")
    if given.keys() & KINDS.keys():
        merged += KINDS
    elif place == "endpoint_ids":
        merged.append("actions")
    if {"endpoint_ids", "branch_ids"} <= given.keys():
        of_kind.append("key.branch_id = ANY(%(branch_ids)s)")
    of_kind += [f"key.{COLUMNS[name]} = {name}.value" for name in merged]
    values = [f"unnest(%({name})s::text[]) {name}(value)" for name in merged]
    return {
        "kinds": " CROSS JOIN ".join(values),
        "of_kind": " AND ".join(of_kind),
    }


def _in_time(wanted: OperationFilter, row: str) -> str:
    bounds = ["true"]
    if wanted.since is not None:
        bounds.append(f"{row}.created_at >= %(since)s")
    if wanted.until is not None:
        bounds.append(f"{row}.created_at < %(until)s")
    return " AND ".join(bounds)
