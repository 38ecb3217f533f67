"""Options of EXPLAIN that only Neon's own Postgres has, which Neon's MCP server sends. They add
counters to the plan; any other Postgres refuses the whole statement for them."""

import re

# A list of names, each with a plain word or number or without. What holds anything else, as a query
# in parentheses does, is left alone.
_OPTION = r"\s*(?!SELECT\b)\w++(?:\s+\w++)?\s*"
_EXPLAIN = re.compile(rf"\s*EXPLAIN\s*\(({_OPTION}(?:,{_OPTION})*)\)", re.ASCII | re.IGNORECASE)
_NEONS = re.compile(r"\s*(?:FILECACHE|PREFETCH)\b.*", re.ASCII | re.IGNORECASE | re.DOTALL)


def without_neons_options(query: str) -> str:
    """The statement with `FILECACHE` and `PREFETCH` blanked out of the option list that it begins
    with. It stays as long as it was, so that positions in errors are those of what was sent."""
    found = _EXPLAIN.match(query)
    if found is None:
        return query
    options = found[1].split(",")
    kept = [one for one in options if not _NEONS.fullmatch(one)]
    if len(kept) == len(options):
        return query
    start, end = found.span(1)
    if not kept:
        # Postgres knows no empty list.
        start, end = start - 1, end + 1
    return query[:start] + ",".join(kept).ljust(end - start) + query[end:]
