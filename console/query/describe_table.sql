-- What the catalog says about the table of this schema and name: a row for each column, with the
-- fields of TableColumn, the column's position in the key, what else identifies a row, and the
-- fields of Description.
--
-- `tree` has the table and those below it: its partitions, or the tables that inherit from it.
--
-- `part` has, for each column, its type and what that consists of: a domain's type, elements,
-- fields. Each of these needs a default B-tree operator class, or rows cannot be sorted by the
-- column. The operators of that class may have any names, and their schema may not be in the
-- search path.
--
-- `=` of the types of `is_exact` holds only between equal texts, unless the collation is
-- nondeterministic. Of other types it may not: all boxes of the same area are equal, and so are
-- 1.0 and 1.00.
--
-- The key is the primary one or, if there is none, a unique one of columns that are never NULL. An
-- index of another class or collation may consider values distinct that are equal in comparisons
-- of the column. A key of a table that others inherit from does not hold for the others' rows.
WITH RECURSIVE this AS (
  SELECT c.* FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = $2
), tree AS (
  SELECT oid, relkind, reltuples FROM this
  UNION SELECT c.oid, c.relkind, c.reltuples FROM tree
  JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
), part AS (
  SELECT a.attnum, a.atttypid AS type, true AS is_whole
  FROM this JOIN pg_catalog.pg_attribute a ON a.attrelid = this.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
  UNION SELECT part.attnum, below.type, part.is_whole AND t.typtype = 'd'
  FROM part JOIN pg_catalog.pg_type t ON t.oid = part.type
  CROSS JOIN LATERAL (
    SELECT t.typbasetype AS type WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A' AND t.typtype <> 'd'
    UNION ALL SELECT f.atttypid FROM pg_catalog.pg_attribute f
      WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
  ) AS below
), ordered AS (
  SELECT part.attnum, part.is_whole, t.oid, t.typtype, (
    SELECT o.oid FROM pg_catalog.pg_opclass o
    JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_type i ON i.oid = o.opcintype
    WHERE o.opcdefault AND (i.oid = t.oid OR i.typname = CASE
        WHEN t.typcategory = 'A' THEN 'anyarray' WHEN t.typtype = 'c' THEN 'record'
        WHEN t.typtype = 'e' THEN 'anyenum' WHEN t.typtype = 'r' THEN 'anyrange'
        WHEN t.typtype = 'm' THEN 'anymultirange' END
      OR EXISTS (SELECT FROM pg_catalog.pg_cast WHERE castsource = t.oid AND casttarget = i.oid
        AND castmethod = 'b' AND castcontext = 'i'))
    ORDER BY i.oid = t.oid DESC, i.typispreferred DESC LIMIT 1) AS class
  FROM part JOIN pg_catalog.pg_type t ON t.oid = part.type WHERE t.typtype <> 'd'
)
SELECT pg_catalog.json_build_object(
    'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, -1),
    'base', pg_catalog.format_type(base.oid, -1), 'is_nullable', NOT a.attnotnull,
    'is_generated', a.attgenerated <> '' OR a.attidentity = 'a', 'is_identity', a.attidentity = 'a',
    'is_long', a.attlen < 0,
    'is_exact', coalesce(l.collisdeterministic, true) AND base.oid = ANY (
      '{smallint,integer,bigint,oid,bool,uuid,date,bytea,text,name,varchar,timestamp,timestamptz}'
      ::pg_catalog.regtype[]),
    'operators', CASE WHEN EXISTS (SELECT FROM ordered WHERE attnum = a.attnum AND class IS NULL)
      THEN '[]'::json ELSE (
        SELECT pg_catalog.json_agg(
          CASE n.nspname WHEN 'pg_catalog' THEN o.oprname::text
            ELSE pg_catalog.format('OPERATOR(%I.%s)', n.nspname, o.oprname) END
          ORDER BY m.amopstrategy)
        FROM pg_catalog.pg_opclass k JOIN pg_catalog.pg_amop m ON m.amopfamily = k.opcfamily
          AND m.amoplefttype = k.opcintype AND m.amoprighttype = k.opcintype
        JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
        JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace WHERE k.oid = base.class) END),
  place.ordinality,
  CASE WHEN this.relkind NOT IN ('r', 'p', 'm') OR whole.has_foreign THEN NULL
    WHEN this.relkind = 'p' OR whole.has_heirs THEN 'tableoid' ELSE 'ctid' END,
  pg_catalog.json_build_object(
    'estimated_rows', whole.rows,
    'is_insertable', pg_catalog.pg_relation_is_updatable(this.oid, true) & 8 <> 0,
    'is_updatable', pg_catalog.pg_relation_is_updatable(this.oid, true) & 4 <> 0,
    'has_rules', EXISTS (
      SELECT FROM pg_catalog.pg_rewrite WHERE ev_class = this.oid AND ev_type <> '1'))
FROM this JOIN pg_catalog.pg_attribute a ON a.attrelid = this.oid
JOIN ordered AS base ON base.attnum = a.attnum AND base.is_whole
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
CROSS JOIN (
  SELECT count(*) > 1 AS has_heirs, bool_or(relkind = 'f') AS has_foreign,
    CASE WHEN bool_or(reltuples < 0 AND relkind <> 'p') THEN -1
      ELSE sum(reltuples) FILTER (WHERE relkind <> 'p')::bigint END AS rows
  FROM tree
) AS whole
LEFT JOIN LATERAL (
  SELECT i.indkey, i.indnkeyatts FROM pg_catalog.pg_index i
  WHERE i.indrelid = this.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND NOT (this.relkind = 'r' AND whole.has_heirs) AND NOT EXISTS (
      SELECT FROM ROWS FROM (
        pg_catalog.unnest(i.indkey), pg_catalog.unnest(i.indclass),
        pg_catalog.unnest(i.indcollation)
      ) WITH ORDINALITY AS one (attnum, class, compared, ordinality)
      JOIN pg_catalog.pg_attribute b ON b.attrelid = this.oid AND b.attnum = one.attnum
      LEFT JOIN pg_catalog.pg_opclass o ON o.oid = one.class
      WHERE one.ordinality <= i.indnkeyatts
        AND NOT (b.attnotnull AND o.opcdefault AND b.attcollation = one.compared))
  ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1
) AS k ON true
LEFT JOIN LATERAL pg_catalog.unnest(k.indkey) WITH ORDINALITY AS place (attnum, ordinality)
  ON place.attnum = a.attnum AND place.ordinality <= k.indnkeyatts
ORDER BY a.attnum
