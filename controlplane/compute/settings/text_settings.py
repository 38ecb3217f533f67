"""Checks Postgres settings whose values are words, as far as that is possible without asking
Postgres. `postgres_settings` uses this; Postgres checks all other settings when it starts."""

import re
from collections.abc import Callable, Mapping, Sequence

Judge = Callable[[str, Sequence[str]], str | None]

# Names of encodings, in lower case without punctuation, as Postgres compares them.
ENCODINGS = frozenset(
    """
    abc alt big5 euccn eucjis2004 eucjp euckr euctw gb18030 gbk iso88591 iso885910 iso885913
    iso885914 iso885915 iso885916 iso88592 iso88593 iso88594 iso88595 iso88596 iso88597 iso88598
    iso88599 johab koi8 koi8r koi8u latin1 latin10 latin2 latin3 latin4 latin5 latin6 latin7
    latin8 latin9 mskanji muleinternal shiftjis shiftjis2004 sjis sqlascii tcvn tcvn5712 uhc
    unicode utf8 vscii win win1250 win1251 win1252 win1253 win1254 win1255 win1256 win1257
    win1258 win866 win874 win932 win936 win949 win950 windows1250 windows1251 windows1252
    windows1253 windows1254 windows1255 windows1256 windows1257 windows1258 windows866 windows874
    windows932 windows936 windows949 windows950
    """.split()
)
# Libraries that only read the changes of the database that their client connects to.
OUTPUT_PLUGINS = ("pgoutput", "test_decoding", "wal2json")
ABBREVIATIONS = ("Default", "Australia", "India")
DATESTYLE = re.compile(
    r"iso|sql|postgres\w*|german|ymd|dmy|euro\w*|mdy|us|noneuro\w*|default", re.IGNORECASE
)
SWITCHES = ("on", "off", "true", "false", "yes", "no", "1", "0")
LOGGED_OF_CONNECTIONS = ("receipt", "authentication", "authorization", "setup_durations", "all")
# A zone's name and its offset west, and perhaps the name of its summer time; or hours east as a
# number; or an interval. Postgres accepts no offset that has seconds.
POSIX_ZONE = re.compile(
    r"(?:<[^>]{3,}>|[A-Za-z]{3,})[+-]?\d{1,3}(?::\d\d(?::00)?)?(?:(?:<[^>]{3,}>|[A-Za-z]{3,}).*)?"
    r"|[+-]?\d{1,3}(?:\.\d+)?(?::\d\d(?::00)?)?"
    r"|INTERVAL\s.*",
    re.IGNORECASE,
)
IDENTIFIER = r"\s*(?:\"(?:[^\"]|\"\")+\"|[^\s,\"][^\s,]*)\s*"
IDENTIFIERS = re.compile(rf"{IDENTIFIER}(?:,{IDENTIFIER})*")


def complaint_of_text(name: str, value: str, values: Sequence[str]) -> str | None:
    """Why the value is refused for the setting `name`, which is in lower case; None if no check
    here refuses it. `values` are those that Postgres lists; empty if it lists none."""
    judge = CHECKS.get(name)
    return judge(value, values) if judge else None


def _timezone(value: str, values: Sequence[str]) -> str | None:
    known = {one.lower() for one in values}
    if not known or value.strip().lower() in known or POSIX_ZONE.fullmatch(value.strip()):
        return None
    return f'must be the name of a time zone such as Europe/Berlin, got "{value}"'


def _locale(value: str, values: Sequence[str]) -> str | None:
    """An empty value means the server's own locale."""
    known = {_alphanumeric(one) for one in (*values, "C", "POSIX", "")}
    if not values or _alphanumeric(value) in known:
        return None
    return (
        f'must be a locale that the server has, one of {", ".join(sorted(values))}, got "{value}"'
    )


def _message_locale(value: str, values: Sequence[str]) -> str | None:
    """For lc_messages, Postgres accepts no empty value from a file."""
    return _locale(value, values) if value else 'must be a locale that the server has, got ""'


def _must_be(what: str, fits: Callable[[str], object]) -> Judge:
    """A judge of values that fit, or do not, whatever Postgres lists."""
    return lambda value, _: None if fits(value) else f'must be {what}, got "{value}"'


def _some_of(*known: str) -> Judge:
    """A judge of lists of these words, in whatever case."""
    return _must_be(
        f"some of {', '.join(known)}",
        lambda value: all(word.lower() in known for word in _split_list(value)),
    )


def _log_connections(value: str, values: Sequence[str]) -> str | None:
    if value.strip().lower() in SWITCHES:
        return None
    words = _some_of(*LOGGED_OF_CONNECTIONS)(value, values)
    return words and words.replace("some of", "on, off, or some of", 1)


def _text_search(value: str, values: Sequence[str]) -> str | None:
    """Names of Postgres's own configurations; others are known only in their database."""
    schema, dot, name = value.lower().replace('"', "").rpartition(".")
    if not values or name in values or (dot and schema != "pg_catalog"):
        return None
    return (
        f"must be one of {', '.join(sorted(values))}, or a configuration of your own with its "
        f'schema, such as public.mine, got "{value}"'
    )


CHECKS: Mapping[str, Judge] = {
    "client_encoding": _must_be(
        "the name of an encoding such as UTF8", lambda value: _alphanumeric(value) in ENCODINGS
    ),
    "createrole_self_grant": _some_of("set", "inherit"),
    "datestyle": _must_be(
        'a style and an order such as "ISO, DMY"',
        lambda value: all(map(DATESTYLE.fullmatch, _split_list(value))),
    ),
    "default_text_search_config": _text_search,
    "lc_messages": _message_locale,
    "lc_monetary": _locale,
    "lc_numeric": _locale,
    "lc_time": _locale,
    "log_connections": _log_connections,
    "output_plugin_libraries": _some_of(*OUTPUT_PLUGINS),
    "search_path": _must_be(
        "names of schemas, separated by commas",
        lambda value: not value.strip() or IDENTIFIERS.fullmatch(value),
    ),
    "timezone": _timezone,
    "timezone_abbreviations": _must_be(
        f"one of {', '.join(ABBREVIATIONS)}", ABBREVIATIONS.__contains__
    ),
}


def _split_list(value: str) -> list[str]:
    return [word.strip() for word in value.split(",")] if value.strip() else []


def _alphanumeric(value: str) -> str:
    return re.sub(r"[^a-z0-9]", "", value.lower())
