"""Why something failed, in a plain sentence. The raw words of Postgres and its programs, such as a
log of several lines, come second."""

import re
from dataclasses import dataclass

from django import template

from console.templatetags.console_tags import sentence

register = template.Library()

# What only Postgres, its programs or libpq write.
RAW = re.compile(
    r"\b(?:FATAL|PANIC|ERROR|DETAIL|HINT|CONTEXT|STATEMENT|SQLSTATE)\b:?"
    r"|\b(?:pg_\w+|initdb|postgres|psql|pgbouncer): |connection to server|SSL SYSCALL"
    r"|could not (?:access|bind|connect|create|extend|find|fork|fsync|load|locate|map|open|read"
    r"|receive|remove|resize|send|stat|write) "
    r'|\binvalid (?:page|checkpoint|value for parameter)|configuration parameter "'
    r'|valid range for parameter "|: (?:No such file|Permission denied|Input/output error)'
)
# The sentences for what Postgres writes; the first that matches is used. {} is what it names.
KNOWN_MESSAGES = [
    (re.compile(pattern), words)
    for pattern, words in (
        ("No space left on device|[Dd]isk quota exceeded", "The disk is full."),
        (
            '(?:configuration|for) parameter "([^"]+)"',
            "Postgres does not accept the setting “{}”.",
        ),
        (
            "pg_control|checkpoint record|invalid page|checksum|could not read blocks?",
            "The branch's data is damaged or incomplete.",
        ),
        ("[Cc]annot allocate memory|out of memory", "There is not enough memory."),
        (
            "too many clients|remaining connection slots",
            "All connections of the endpoint are in use.",
        ),
        (
            "the database system is (?:starting|shutting|in recovery|not )",
            "Postgres was starting or stopping.",
        ),
        (
            "connection to server|server closed the connection|SSL SYSCALL"
            "|terminating connection|[Cc]onnection (?:refused|reset|timed out)",
            "The connection to Postgres failed.",
        ),
        (
            "lock timeout|deadlock detected",
            "Another session held a lock for too long.",
        ),
    )
]
# Otherwise, what failed, by the operation's action.
FAILED = {
    "start_compute": "Postgres did not start.",
    "suspend_compute": "Postgres did not stop.",
    "apply_config": "The configuration could not be applied.",
    "check_availability": "Postgres did not answer.",
    "create_branch": "The branch's data could not be copied.",
    "create_timeline": "The branch's data could not be created.",
    "delete_timeline": "The branch's data could not be removed.",
    "restore_from_store": "The branch could not be restored from the store.",
    "upgrade_project": "The project could not be upgraded.",
    "move_project": "The project could not be moved.",
}
DEFAULT_REASON = "Postgres reported an error."
# What Perch advises after the raw words, within so many last characters: to look for it in long
# words would take very long.
MAX_ADVICE_LENGTH = 1_000
ADVICE = re.compile(
    r";\s+((?:the next start tries|try again|it is tried again|if this persists|tell this host"
    r"|change |have this host|only this host|remove |name another|delete branches)[^\n]*)\Z"
)
# What went wrong, as Postgres says it after its severity.
MESSAGE = re.compile(r"\b(?:ERROR|FATAL|PANIC):\s+([^\n;]+)")
# A line longer than this is no sentence.
MAX_SENTENCE_LENGTH = 200


@dataclass(frozen=True)
class Reason:
    # What to read first, with advice if the server gives some.
    plain: str
    # What the server wrote; "" if that is `plain`.
    raw: str = ""


@register.filter
def reason(error: str, action: str = "") -> Reason:
    """Return why an operation of this action failed, or why something could not be shown."""
    if not RAW.search(error) and "\n" not in error.strip():
        return Reason(error)
    advice = ADVICE.search(error, max(0, len(error) - MAX_ADVICE_LENGTH))
    words = error[: advice.start()] if advice else error
    parts = [_sentence(words, action), f"{sentence(advice[1]).rstrip('.')}." if advice else ""]
    return Reason(" ".join(filter(None, parts)), error.strip())


@register.filter
def plainly(error: str, action: str = "") -> str:
    return reason(error, action).plain


def _sentence(words: str, action: str) -> str:
    for pattern, known in KNOWN_MESSAGES:
        if found := pattern.search(words):
            return known.format(*found.groups())
    first = words.strip().partition("\n")[0].strip(" :;,")
    if first and not RAW.search(first) and len(first) <= MAX_SENTENCE_LENGTH:
        return f"{sentence(first).rstrip('.')}."
    failed, message = FAILED.get(action, DEFAULT_REASON), MESSAGE.search(words)
    if message is None or len(message[1]) > MAX_SENTENCE_LENGTH:
        return failed
    return f"{failed.rstrip('.')}: {message[1].strip().rstrip('.')}."
