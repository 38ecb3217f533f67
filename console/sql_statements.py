"""Cuts what somebody typed into its SQL statements, as psql does: at each semicolon that is not
within a string, a comment, parentheses, or the body of a function."""

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
      (?P<space> \s+ | --[^\n]* )
    | (?P<comment> /\* )
    | (?P<text> [eE]'(?:[^'\\]|\\.|'')*'? | '(?:[^']|'')*'? | "(?:[^"]|"")*"? )
    | (?P<dollar> \$(?:[^\W\d]\w*)?\$ )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<other> . )
    """,
    re.DOTALL | re.VERBOSE,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
# That are run at once, in one transaction.
MOST_STATEMENTS = 50
# After these words semicolons may be within BEGIN ATOMIC … END.
WITH_A_BODY = re.compile(r"create (?:or replace )?(?:function|procedure)\b")


@dataclass(frozen=True)
class Statement:
    text: str
    # Where it begins in what was typed, in characters.
    start: int


def split(typed: str) -> list[Statement]:
    """The statements, without the semicolons between them; what is comment alone is none."""
    found: list[Statement] = []
    # Of the statement under way: from its first token to the end of its last one.
    start: int | None = None
    end = position = 0
    parentheses = body = 0
    words: list[str] = []
    while token := TOKEN.match(typed, position):
        kind, text = token.lastgroup, token[0]
        position = token.end()
        if kind == "comment":
            position = _end_of_comment(typed, position)
        if kind == "dollar":
            close = typed.find(text, position)
            position = len(typed) if close < 0 else close + len(text)
        if kind in ("comment", "space"):
            continue
        if text == ";" and parentheses <= 0 and body == 0:
            if start is not None:
                found.append(Statement(typed[start:end], start))
            start, parentheses, words = None, 0, []
            continue
        parentheses += {"(": 1, ")": -1}.get(text, 0)
        if kind == "word":
            body = _depth(body, text.lower(), words)
        start = token.start() if start is None else start
        end = position
    if start is not None:
        found.append(Statement(typed[start:end], start))
    return found


def _depth(body: int, word: str, words: list[str]) -> int:
    """How deep in a function's body it is after this word; `words` are the statement's first."""
    if len(words) < 4:
        words.append(word)
    if not WITH_A_BODY.match(" ".join(words)):
        return 0
    if word == "begin" or (body and word == "case"):
        return body + 1
    return body - 1 if body and word == "end" else body


def _end_of_comment(typed: str, position: int) -> int:
    """Comments nest; one that is not closed goes on to the end."""
    depth = 1
    while depth:
        edge = COMMENT_EDGE.search(typed, position)
        if edge is None:
            return len(typed)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position
