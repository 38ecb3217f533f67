"""Removes the options of EXPLAIN that only Neon's own Postgres has. Neon's MCP server sends them.
They add counters to the plan; any other Postgres refuses the whole statement because of them."""

import re

# A list of names, each with one word or number or none. A list that contains anything else, such as
# a query in parentheses, is left unchanged.
_OPTION = r"\s*(?!SELECT\b)\w++(?:\s+\w++)?\s*"
_EXPLAIN = re.compile(rf"\s*EXPLAIN\s*\(({_OPTION}(?:,{_OPTION})*)\)", re.ASCII | re.IGNORECASE)
_NEONS = re.compile(r"\s*(?:FILECACHE|PREFETCH)\b.*", re.ASCII | re.IGNORECASE | re.DOTALL)


def without_neons_options(query: str) -> str:
    """Returns the statement with `FILECACHE` and `PREFETCH` blanked out in the option list that it
    begins with. Its length stays the same, so that positions in errors are those of the original.
    """
    found = _EXPLAIN.match(query)
    if found is None:
        return query
    options = found[1].split(",")
    kept = [one for one in options if not _NEONS.fullmatch(one)]
    if len(kept) == len(options):
        return query
    start, end = found.span(1)
    if not kept:
        # Postgres does not accept an empty list.
        start, end = start - 1, end + 1
    return query[:start] + ",".join(kept).ljust(end - start) + query[end:]
