"""Decides what happens to each column of a database that is masked.

A column with a rule gets what the rule says. A column without one keeps its values only if its type
cannot hold text; otherwise the project's policy decides. The types that cannot are listed, and none
that can: so a column of a type that nobody thought of is never left as it was.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.compute.masking.functions import Mask, Rule, RuleRefused, mask_of
from controlplane.compute.processes.session import Session

MAX_NAMED = 10
# The types that hold no text, and with them arrays, ranges and domains of them, and all enums.
PLAIN_TYPES = (
    "bool int2 int4 int8 float4 float8 numeric money oid xid xid8 cid tid pg_lsn date time timetz "
    "timestamp timestamptz interval uuid bit varbit point line lseg box path polygon circle"
).split()
# Tables of extensions that a superuser installed hold the extension's own data, such as lists of
# coordinate systems. A client cannot have written them.
TABLES = """
WITH RECURSIVE reached (root, id) AS (
    SELECT oid, oid FROM pg_type
    UNION
    SELECT root, inner_one.id FROM reached JOIN pg_type t ON t.oid = reached.id
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS id WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
        UNION ALL SELECT atttypid FROM pg_attribute
            WHERE t.typtype = 'c' AND attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
    ) AS inner_one
), plain AS (
    SELECT root, bool_and(
        t.typtype = 'e' OR t.typtype IN ('c', 'd', 'r', 'm') OR t.typcategory = 'A'
        OR t.typnamespace = 'pg_catalog'::regnamespace AND t.typname = ANY (%s)
    ) AS is_plain FROM reached JOIN pg_type t ON t.oid = reached.id GROUP BY root
), above (child, parent) AS (
    SELECT inhrelid, inhparent FROM pg_inherits
    UNION SELECT above.child, inhparent FROM above JOIN pg_inherits ON inhrelid = above.parent
)
SELECT jsonb_build_object(
    'schema', n.nspname, 'name', c.relname, 'owner', r.rolname,
    'forces', c.relforcerowsecurity, 'partitioned', c.relkind = 'p',
    'parents', (SELECT coalesce(jsonb_agg(jsonb_build_array(pn.nspname, p.relname)), '[]')
        FROM above JOIN pg_class p ON p.oid = above.parent JOIN pg_namespace pn
        ON pn.oid = p.relnamespace WHERE above.child = c.oid),
    'fires', (SELECT min(name) FROM (
        SELECT tgname AS name FROM pg_trigger
            WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled IN ('A', 'R')
        UNION ALL SELECT rulename FROM pg_rewrite
            WHERE ev_class = c.oid AND ev_enabled IN ('A', 'R')) AS found),
    'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'name', attname, 'type', format_type(atttypid, atttypmod), 'plain', is_plain,
            'computed', attgenerated <> '') ORDER BY attnum), '[]')
        FROM pg_attribute JOIN plain ON root = atttypid
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped))::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'
    AND n.nspname <> 'information_schema' AND NOT (r.rolsuper AND EXISTS (SELECT FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))
ORDER BY n.nspname, c.relname
"""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    mask: Mask
    # Why it has this mask: "rule", "policy" (no rule names it), "plain" (it holds no text) or
    # "computed" (Postgres computes it from other columns).
    because: str


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    owner: str
    forces_row_security: bool
    # Whether it has no rows of its own.
    is_partitioned: bool
    columns: Sequence[Column]


def plan_of(session: Session, database: str, rules: Iterable[Rule], policy: str) -> list[Table]:
    """The database's tables, with what happens to their columns. `policy` says what happens to a
    column that may hold text and has no rule: "refuse", "null" or "keep". Partitions and children
    have the rules of their parents. Raises RuleRefused, psycopg.Error."""
    wanted = {
        (rule["schema_name"], rule["table_name"], rule["column_name"]): rule for rule in rules
    }
    unused, unlisted, tables = set(wanted), [], []
    for (text,) in session.execute(TABLES, [PLAIN_TYPES]):
        found = json.loads(str(text))
        own = (str(found["schema"]), str(found["name"]))
        names = [own, *((str(schema), str(name)) for schema, name in found["parents"])]
        types = {column["name"]: column["type"] for column in found["columns"]}
        columns = []
        for column in found["columns"]:
            keys = [(*name, column["name"]) for name in names]
            unused.difference_update(keys)
            rule = next((wanted[key] for key in keys if key in wanted), None)
            place = ".".join((database, *own, column["name"]))
            mask, because = _decide(place, column, rule, policy, types)
            if mask is None:
                unlisted.append(f"{place} ({column['type']})")
            else:
                columns.append(Column(column["name"], column["type"], mask, because))
        if found["fires"] and any(column.mask.expression for column in columns):
            raise RuleRefused(
                f'"{found["fires"]}" on {database}.{".".join(own)} is a trigger or rule '
                "enabled as ALWAYS or REPLICA, so it would act on each masked row: disable it"
            )
        tables.append(Table(*own, found["owner"], found["forces"], found["partitioned"], columns))
    if unused:
        missing = sorted(".".join((database, *key)) for key in unused)
        raise RuleRefused(f"there is no column {_named(missing)}: change the masking rule for it")
    if unlisted:
        raise RuleRefused(
            f"no masking rule for {_named(unlisted)}: add one (anon.keep() leaves a column as it "
            'is), or change the project\'s masking_policy from "refuse"'
        )
    return tables


def _decide(
    place: str,
    column: Mapping[str, Any],
    rule: Rule | None,
    policy: str,
    types: Mapping[str, str],
) -> tuple[Mask | None, str]:
    """The column's mask, and why; no mask if the policy refuses it. Raises RuleRefused."""
    if column["computed"]:
        if rule is not None:
            raise RuleRefused(f"{place} is computed from other columns: mask those instead")
        return Mask(None), "computed"
    if rule is not None:
        try:
            return mask_of(rule, types), "rule"
        except RuleRefused as error:
            raise RuleRefused(f"{place}: {error}") from error
    if column["plain"]:
        return Mask(None), "plain"
    masks = {"null": Mask("NULL", is_made=True), "keep": Mask(None)}
    return masks.get(policy), "policy"


def _named(places: Sequence[str]) -> str:
    more = len(places) - MAX_NAMED
    return ", ".join(places[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
