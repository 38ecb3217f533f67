"""Splits SQL that a user typed into statements, as psql does: at each semicolon that is not within
a string, a comment, parentheses or the body of a function."""

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
# The most statements that are run at once, in one transaction.
MOST_STATEMENTS = 50
# In such a statement, semicolons between BEGIN ATOMIC and END do not end it.
WITH_A_BODY = re.compile(r"create (?:or replace )?(?:function|procedure)\b")


@dataclass(frozen=True)
class Statement:
    text: str
    # The offset of its first character in what was typed.
    start: int


def split(typed: str) -> list[Statement]:
    """Return the statements, without the semicolons. Comments alone are not a statement."""
    found: list[Statement] = []
    # The range of the present statement: the start of its first token, and the end of its last.
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
    """Return the depth in a function's body after this word; `words` are the statement's first."""
    if len(words) < 4:
        words.append(word)
    if not WITH_A_BODY.match(" ".join(words)):
        return 0
    if word == "begin" or (body and word == "case"):
        return body + 1
    return body - 1 if body and word == "end" else body


def _end_of_comment(typed: str, position: int) -> int:
    """Return where the comment ends. Comments nest; an unclosed one reaches to the end."""
    depth = 1
    while depth:
        edge = COMMENT_EDGE.search(typed, position)
        if edge is None:
            return len(typed)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position
