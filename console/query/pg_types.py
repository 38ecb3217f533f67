"""The names of Postgres's built-in types, whose numbers the answers have."""

TYPES = {
    16: "boolean", 17: "bytea", 18: "char", 19: "name", 20: "bigint", 21: "smallint",
    23: "integer", 24: "regproc", 25: "text", 26: "oid", 27: "tid", 28: "xid", 114: "json",
    142: "xml", 600: "point", 601: "lseg", 602: "path", 603: "box", 604: "polygon", 628: "line",
    650: "cidr", 700: "real", 701: "double precision", 705: "unknown", 718: "circle",
    790: "money", 829: "macaddr", 869: "inet", 1042: "character", 1043: "character varying",
    1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval",
    1266: "timetz", 1560: "bit", 1562: "bit varying", 1700: "numeric", 2205: "regclass",
    2206: "regtype", 2249: "record", 2278: "void", 2950: "uuid", 3220: "pg_lsn",
    3614: "tsvector", 3615: "tsquery", 3802: "jsonb", 3904: "int4range", 3906: "numrange",
    3908: "tsrange", 3910: "tstzrange", 3912: "daterange", 3926: "int8range", 4072: "jsonpath",
    1000: "boolean[]", 1001: "bytea[]", 1003: "name[]", 1005: "smallint[]", 1007: "integer[]",
    1009: "text[]", 1015: "character varying[]", 1016: "bigint[]", 1021: "real[]",
    1022: "double precision[]", 1028: "oid[]", 1034: "aclitem[]", 1115: "timestamp[]",
    1182: "date[]", 1185: "timestamptz[]", 1231: "numeric[]", 199: "json[]", 2951: "uuid[]",
    3807: "jsonb[]",
}  # fmt: skip
# Values of these types are aligned to the right.
NUMBERS = frozenset(
    {"bigint", "smallint", "integer", "real", "double precision", "numeric", "money", "oid"}
)


def type_name(oid: object) -> str:
    """Return the name of a type; "" for a user-defined one, whose name the answer lacks."""
    return TYPES.get(oid, "") if isinstance(oid, int) else ""
