"""The log: one format in every process of the management service, one line for each record.

    2026-11-21T16:20:01.123Z level=INFO process=worker logger=… request=… endpoint=… message="…"

With PERCH_LOG_FORMAT=json each line is an object with the same keys and `time`. A call passes its
own keys as `extra`: `log.info("operation finished", extra={"ms": 12})`. `console/logs.py` is the
console's copy of this module, because neither package may import the other; a test compares the
output of both.
"""

import json
import logging
import logging.config
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

# In characters, because a value may come from an untrusted client. A longer traceback loses its
# beginning, because its end says most.
MAX_VALUE_LENGTH, MAX_TRACEBACK_LENGTH = 2_000, 16_000
# A value that needs no quotes. Every other value is quoted as an ASCII JSON string, so that it
# contains no line break of any script, no control character and no character that changes the
# text direction.
BARE = re.compile(r"[!#-<>-\[\]-~]+")
# The attributes of every record. All others come from a call's `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "context", "message"}
# Processes whose pools of connections say that the database does not answer.
POOLS_TELL = ("api", "metrics", "proxy", "up")

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context")
_NOTHING: Mapping[str, str] = {}

log = logging.getLogger(__name__)


@contextmanager
def context(**fields: str) -> Iterator[None]:
    """Add the fields to every line logged in this block, also in threads and tasks that copy the
    context. The field `request` is the id of a request or of a client's connection."""
    token = _context.set({**_context.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def add_to_context(**fields: str) -> None:
    """Add the fields to every line that the current task or thread logs from now on."""
    _context.set({**_context.get(_NOTHING), **fields})


def current(field: str) -> str:
    """The value of the field in the current context; "" if the context does not have it."""
    return _context.get(_NOTHING).get(field, "")


class ContextFilter(logging.Filter):
    """Adds to each record the context in which it was logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = _context.get(_NOTHING)
        return True


class RefusalFilter(logging.Filter):
    """Logs a request that Django refuses as a warning without a traceback. A bad Host header, for
    example, is the client's mistake, and any client can send any number of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.security."):
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record))

    def fields(self, record: logging.LogRecord) -> dict[str, str | int | float]:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, str | int | float] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "process": self.process,
            "logger": record.name,
        }
        about = record.__dict__.get("context", _NOTHING)
        fields.update((name, value) for name, value in about.items() if value)
        for name, value in record.__dict__.items():
            # Leave out objects: Django's `request` would show the query string.
            if name not in STANDARD and isinstance(value, str | int | float):
                fields[name] = _cut(value)
        fields["message"] = _cut(record.getMessage())
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)[-MAX_TRACEBACK_LENGTH:]
        return fields


class TextFormatter(JsonFormatter):
    """Formats a record as one line: the time, then the fields in logfmt."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        time = fields.pop("time")
        return f"{time} " + " ".join(f"{name}={_quoted(fields[name])}" for name in fields)


def configuration(process: str) -> dict[str, Any]:
    """The configuration for `logging.config.dictConfig`, for the process with that name. Raises
    ValueError if PERCH_LOG_FORMAT is neither text nor json."""
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    wanted = os.environ.get("PERCH_LOG_FORMAT") or "text"
    if wanted not in formatters:
        raise ValueError(f"PERCH_LOG_FORMAT must be text or json, not {wanted!r}")
    level = (os.environ.get("PERCH_LOG_LEVEL") or "INFO").upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatters[wanted], "process": process}},
        "filters": {"context": {"()": ContextFilter}, "refusals": {"()": RefusalFilter}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "filters": ["context", "refusals"],
            }
        },
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"level": "WARNING", "handlers": []},
            # It logs every response of status 4xx or 5xx. The API logs those that matter itself.
            "django.request": {"level": "CRITICAL"},
            # It logs connections opened and closed as INFO, and each failed one as WARNING. The
            # worker and the commands say themselves that the database does not answer.
            "psycopg.pool": {"level": "WARNING" if process in POOLS_TELL else "ERROR"},
        },
    }


def process_of(arguments: Sequence[str]) -> str:
    """The name of this process in the log: its management command, or `api` in a web server."""
    if Path(arguments[0]).name in ("manage.py", "perch") and len(arguments) > 1:
        return arguments[1]
    return "api"


def begin(config: dict[str, Any]) -> None:
    """Configure logging with `config`, and also log Python warnings and uncaught exceptions."""
    logging.config.dictConfig(config)
    # No line shows the thread or the process, and looking them up takes a good part of the time
    # that a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda died: _log_uncaught(
        died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback
    )


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    log.critical("uncaught exception", exc_info=(kind, error, trace))


def _cut(value: str | int | float) -> str | int | float:
    if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
        return value[:MAX_VALUE_LENGTH] + "…"
    return value


def _quoted(value: str | int | float) -> str:
    # A number or a bool needs no quotes in JSON.
    if isinstance(value, str) and BARE.fullmatch(value):
        return value
    return json.dumps(value)
