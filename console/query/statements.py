"""Splits SQL that a user typed into statements, as psql does (psqlscan.l): at each semicolon that
is not within a string, a comment, parentheses or the body of a function."""

import re
from dataclasses import dataclass

from console.turns import let_others

# To Postgres, every character outside of ASCII belongs to a name, and none of them is a space. A
# string goes on after a line break, by the rules of its beginning.
TOKEN = re.compile(
    r"""
      (?P<space> [ \t\n\r\f\v]+ | --[^\n\r]* )
    | (?P<comment> /\* )
    | (?P<text>
        [eE]'(?:[^'\\]|\\.|'(?:'|BREAK'))*+'?
      | '(?:[^']|''|'BREAK')*+'?
      | "(?:[^"]|"")*+"? )
    | (?P<dollar> \$(?:[LETTER][LETTER0-9]*)?\$ )
    | (?P<word> [LETTER][LETTER0-9$]* )
    | (?P<other> [^LETTER \t\n\r\f\v'"$();/-]+ | . )
    """.replace("LETTER", r"A-Za-z_\x80-\U0010ffff").replace(
        "BREAK", r"(?:[ \t\f\v]|--[^\n\r]*)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*+"
    ),
    re.DOTALL | re.VERBOSE,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
# The most statements that are run at once, in one transaction.
MAX_STATEMENTS = 50
# In such a statement, semicolons between BEGIN ATOMIC and END do not end it.
WITH_A_BODY = re.compile(r"create (?:or replace )?(?:function|procedure)\b")


@dataclass(frozen=True)
class Statement:
    text: str
    # The offset of its first character in what was typed.
    start: int


def split(typed: str) -> list[Statement]:
    """Return the statements, without the semicolons. Comments alone are not a statement. Of more
    than MAX_STATEMENTS, one more is returned: the rest is not read."""
    found: list[Statement] = []
    # The range of the present statement: the start of its first token, and the end of its last.
    start: int | None = None
    end = position = 0
    parentheses = body = 0
    words: list[str] = []
    while len(found) <= MAX_STATEMENTS and (token := TOKEN.match(typed, position)):
        let_others()
        kind, text = token.lastgroup, token[0]
        position = token.end()
        if kind == "comment":
            position, is_closed = _end_of_comment(typed, position)
            # Postgres refuses a statement with an unclosed comment.
            kind = "space" if is_closed else kind
        if kind == "dollar":
            close = typed.find(text, position)
            position = len(typed) if close < 0 else close + len(text)
        if kind == "space":
            continue
        if text == ";" and parentheses == 0 and body == 0:
            if start is not None:
                found.append(Statement(typed[start:end], start))
            start, words = None, []
            continue
        parentheses = max(0, parentheses + {"(": 1, ")": -1}.get(text, 0))
        if kind == "word" and parentheses == 0:
            words.append(text.lower())
            body = _depth(body, words)
        start = token.start() if start is None else start
        end = position
    if start is not None:
        found.append(Statement(typed[start:end], start))
    return found


def _depth(body: int, words: list[str]) -> int:
    """Return the depth in a function's body after the last one of the statement's words."""
    if words[0] != "create" or not WITH_A_BODY.match(" ".join(words[:4])):
        return 0
    if words[-2:] == ["begin", "atomic"] or (body and words[-1] == "case"):
        return body + 1
    return body - 1 if body and words[-1] == "end" else body


def _end_of_comment(typed: str, position: int) -> tuple[int, bool]:
    """Return where the comment ends, and whether it is closed. Comments nest."""
    depth = 1
    while depth:
        let_others()
        edge = COMMENT_EDGE.search(typed, position)
        if edge is None:
            return len(typed), False
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position, True
