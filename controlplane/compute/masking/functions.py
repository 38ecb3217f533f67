"""The functions of masking rules, each as an SQL expression over a table's columns.

They have the names of PostgreSQL Anonymizer, whose rules Neon's API takes, and need no extension.
What a function makes depends only on the project's secret and on the original value: a value has
the same mask in every table and at every refresh, so keys and joins still meet. NULL stays NULL.

A rule is parsed and never pasted: it has a known name, literals, and names of the table's columns.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Stands for the project's secret in an expression. No name and no literal has this character.
SECRET = "\0"
CALL = re.compile(r"\s*(?:anon\.)?(\w+)\s*\((.*)\)\s*", re.DOTALL)
ARGUMENT = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d{1,18}(?:\.\d{1,9})?)
    |(?P<column>[A-Za-z_]\w*|"(?:[^"]|"")+"))\s*(?:,|\Z)""",
    re.VERBOSE,
)

FIRST_NAMES = (
    "Ada Alan Amir Ana Anton Asha Ben Bela Carla Chen Clara Dana David Elena Elif Emil Eva Farah "
    "Felix Fiona Georg Grace Hana Hugo Ida Igor Ines Ivan Jana Joan Jonas Julia Karim Kim Lara Leo "
    "Lena Lin Luca Maja Marco Maria Mei Mila Nadia Nils Nina Noah Olga Omar Paul Petra Rosa Ruben "
    "Samir Sara Sofia Sven Tara Tomas Uma Vera Viktor Yuki"
)
LAST_NAMES = (
    "Abel Adler Ahmed Alves Bauer Berg Blanc Brandt Castro Chan Costa Cruz Dahl Diaz Dubois Evans "
    "Fischer Ford Garcia Gruber Haas Hansen Hill Ito Jensen Jones Kaya Keller Khan Klein Kovac "
    "Kumar Lang Lee Lopez Lund Martin Meyer Moreau Moss Nagy Neri Novak Olsen Ortiz Park Patel "
    "Petit Reed Ricci Rossi Roth Sato Silva Singh Smit Stein Tanaka Vega Vogel Wagner Wong Young"
)
CITIES = (
    "Ashford Brookdale Clearwater Dunmore Eastvale Fairview Glenwood Hartfield Ironbridge Kingsley "
    "Lakeside Millbrook Northgate Oakridge Pinehurst Riverton"
)
STREETS = (
    "Birch Cedar Chapel Church Elm Garden High Hill Lake Main Maple Mill Oak Park Station West"
)
COUNTRIES = (
    "Austria Brazil Canada Denmark Egypt Finland Ghana Hungary India Japan Kenya Latvia Mexico "
    "Norway Peru Spain"
)
BUSINESSES = "Holdings Industries Labs Logistics Partners Services Systems Trading"
LOREM = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt."


# A masking rule as in Neon's API: {database_name, schema_name, table_name, column_name}, and one of
# masking_function and masking_value.
Rule = Mapping[str, str]


class RuleRefused(Exception):
    """A masking rule cannot be applied; the message says why, and shows no value of the data."""


@dataclass(frozen=True)
class Mask:
    """What a rule does with a column."""

    # The new value, with SECRET in place of the secret; None to leave the column as it is.
    expression: str | None
    # Whether no masked value may equal one of the column's originals.
    replaces_all: bool = False
    # Whether the values change places within the table; `expression` gives their order.
    shuffles: bool = False
    # Whether the new value has nothing of the original one.
    is_made: bool = False


@dataclass(frozen=True)
class _Function:
    # `h` in it stands for 64 hexadecimal digits that depend on the secret and the seed.
    expression: Callable[..., str]
    # What its arguments are: "column", "number" or "text".
    arguments: Sequence[str] = ()
    replaces_all: bool = False
    # Whether it makes a value of the column's own kind, such as a number, and no text.
    is_native: bool = False


def mask_of(rule: Rule, types: Mapping[str, str]) -> Mask:
    """What the rule does with its column. `types` has the SQL name of the type of each of the
    table's columns. Raises RuleRefused."""
    function, column = rule.get("masking_function"), rule["column_name"]
    if function is None:
        return Mask(f"CAST({_literal(rule['masking_value'])} AS {types[column]})", is_made=True)
    name, given = parse(function)
    arguments = _arguments(given, types)
    if name in OWN and not arguments:
        return OWN[name]
    if name.startswith("pseudo_") and arguments and arguments[0][0] == "column":
        # PostgreSQL Anonymizer's second argument is a salt, in whose place is the project's secret.
        seed, arguments, name = arguments[0][1], [], name.replace("pseudo_", "fake_", 1)
    else:
        seed = next((text for kind, text in arguments if kind == "column"), identifier(column))
    made = FUNCTIONS.get(name)
    if made is None or [kind for kind, _ in arguments] != list(made.arguments):
        wanted = ", ".join(made.arguments if made else ()) or "none"
        raise RuleRefused(f"the arguments of anon.{name} have to be: {wanted}")
    text = made.expression(*(sql for _, sql in arguments))
    text = f"(SELECT {text} FROM (SELECT {_digits(seed)} AS h OFFSET 0) AS seeded)"
    if not made.is_native:
        text = f"CAST({text} AS text)"
    text = f"CASE WHEN {identifier(column)} IS NOT NULL THEN CAST({text} AS {types[column]}) END"
    is_made = name not in ("partial", "partial_email")
    return Mask(text, replaces_all=made.replaces_all, is_made=is_made)


def parse(function: str) -> tuple[str, str]:
    """The name of the function that the text calls, and its arguments, which are not looked at.
    Raises RuleRefused if that function is not offered."""
    call = CALL.fullmatch(function)
    if call is None:
        raise RuleRefused(f'"{function}" does not have the form anon.name(arguments)')
    name = call[1].lower()
    if name not in OWN and name.replace("pseudo_", "fake_", 1) not in FUNCTIONS:
        offered = ", ".join(sorted([*FUNCTIONS, *OWN]))
        raise RuleRefused(f"anon.{name} is not offered by this server; it has anon.{offered}")
    return name, call[2]


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _arguments(text: str, types: Mapping[str, str]) -> list[tuple[str, str]]:
    """The kind and the SQL of each argument. Raises RuleRefused."""
    found, at = [], 0
    while text[at:].strip():
        argument = ARGUMENT.match(text, at)
        if argument is None:
            raise RuleRefused("an argument is no column, no number and no text in quotes")
        kind = str(argument.lastgroup)
        sql = argument[kind]
        if kind == "column":
            name = sql[1:-1].replace('""', '"') if sql.startswith('"') else sql.lower()
            if name not in types:
                raise RuleRefused(f'the table has no column "{name}"')
            sql = identifier(name)
        found.append((kind, sql))
        at = argument.end()
    return found


def _digits(seed: str) -> str:
    """64 hexadecimal digits that depend on the secret and the value of the expression `seed`."""
    keyed = f"CAST({SECRET} AS text) || CAST({seed} AS text)"
    return f"encode(sha256(convert_to({keyed}, getdatabaseencoding())), 'hex')"


def _number(at: int) -> str:
    """A whole number below 2^32, from eight of the digits."""
    return f"CAST(CAST('x' || substr(h, {at}, 8) AS bit(32)) AS bigint)"


def _one_of(words: str, at: int) -> str:
    chosen = words.split()
    listed = ",".join(map(_literal, chosen))
    return f"(ARRAY[{listed}])[1 + mod({_number(at)}, {len(chosen)})]"


def _between(low: str, high: str) -> str:
    return f"{low} + mod({_number(1)}, greatest(1, 1 + {high} - {low}))"


def _decimals(at: int, count: int) -> str:
    return f"lpad(CAST(mod({_number(at)}, {10**count}) AS text), {count}, '0')"


def _partial(column: str, before: str, padding: str, after: str) -> str:
    """A value that would be shown whole is replaced by the padding."""
    text = f"CAST({column} AS text)"
    kept = f"left({text}, {before}) || {padding} || right({text}, {after})"
    return f"CASE WHEN length({text}) > {before} + {after} THEN {kept} ELSE {padding} END"


def _partial_email(column: str) -> str:
    text = f"CAST({column} AS text)"
    return (
        f"left({text}, least(2, position('@' in {text}) - 1)) || '******@' || "
        f"left(split_part({text}, '@', 2), 2) || '******.' || right({text}, 2)"
    )


_SHIFT = f"(CAST({_number(1)} AS float8) / 2147483648 - 1)"
_FIRST, _LAST = _one_of(FIRST_NAMES, 1), _one_of(LAST_NAMES, 9)
# By the name after `anon.`. Generated mail addresses, numbers and networks are those that no person
# has: they are reserved for examples, or not assigned.
FUNCTIONS: Mapping[str, _Function] = {
    "fake_first_name": _Function(lambda: _FIRST),
    "fake_last_name": _Function(lambda: _LAST),
    "fake_email": _Function(
        lambda: f"lower({_FIRST} || '.' || {_LAST} || '.') || substr(h, 17, 12) || '@example.com'",
        replaces_all=True,
    ),
    "fake_address": _Function(
        lambda: (
            f"(1 + mod({_number(17)}, 9999)) || ' ' || {_one_of(STREETS, 1)} || ' Street, ' "
            f"|| {_one_of(CITIES, 9)}"
        ),
        replaces_all=True,
    ),
    "fake_city": _Function(lambda: _one_of(CITIES, 1)),
    "fake_country": _Function(lambda: _one_of(COUNTRIES, 1)),
    "fake_company": _Function(lambda: f"{_LAST} || ' ' || {_one_of(BUSINESSES, 1)}"),
    "fake_postcode": _Function(lambda: _decimals(1, 5)),
    "fake_iban": _Function(lambda: f"'XX00' || {_decimals(1, 9)} || {_decimals(9, 9)}", (), True),
    "fake_ip": _Function(
        lambda: "'2001:db8:' || regexp_replace(substr(h, 1, 24), '(.{4})(?!$)', '\\1:', 'g')",
        replaces_all=True,
    ),
    "hash": _Function(lambda column: "h", ("column",), True),
    "lorem_ipsum": _Function(lambda: _literal(LOREM)),
    "partial": _Function(_partial, ("column", "number", "text", "number")),
    "partial_email": _Function(_partial_email, ("column",)),
    "random_string": _Function(lambda count: f"left(h, {count})", ("number",), True),
    "random_phone": _Function(
        lambda prefix: f"{prefix} || {_decimals(1, 9)}", ("text",), replaces_all=True
    ),
    "random_zip": _Function(lambda: _decimals(1, 5)),
    "random_int_between": _Function(_between, ("number", "number"), is_native=True),
    "random_bigint_between": _Function(_between, ("number", "number"), is_native=True),
    "random_date": _Function(lambda: f"date '1950-01-01' + CAST(mod({_number(1)}, 25567) AS int)"),
    "random_date_between": _Function(
        lambda low, high: (
            f"date {low} + CAST(mod({_number(1)}, "
            f"greatest(1, 1 + (date {high} - date {low}))) AS int)"
        ),
        ("text", "text"),
    ),
    "noise": _Function(
        lambda column, ratio: f"CAST({column} AS float8) * (1 + {ratio} * {_SHIFT})",
        ("column", "number"),
        is_native=True,
    ),
    "dnoise": _Function(
        lambda column, most: f"{column} + {_SHIFT} * interval {most}",
        ("column", "text"),
        is_native=True,
    ),
}
# Those that PostgreSQL Anonymizer does not have: they take no arguments.
OWN: Mapping[str, Mask] = {
    "keep": Mask(None),
    "null": Mask("NULL", is_made=True),
    "shuffle": Mask(_digits("ctid"), shuffles=True),
}
