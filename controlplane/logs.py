"""The log: one format in every process of the management service, one line for each record.

    2026-11-21T16:20:01.123Z level=INFO process=worker logger=… request=… endpoint=… message="…"

With PERCH_LOG_FORMAT=json the same keys, and `time`, are an object on each line. A call's
own keys come as `extra`: `log.info("operation finished", extra={"ms": 12})`. The console
has the same in `console/logs.py`, as neither package may import the other; a test compares
what the two write.
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

# Characters; a value may come from a stranger. Of a trace the end says most.
LONGEST_VALUE, LONGEST_TRACE = 2_000, 16_000
# A value that needs no quotes. Every other is quoted as JSON does it, in ASCII: it holds no
# line break of any script, no control character and nothing that turns the direction.
BARE = re.compile(r"[!#-<>-\[\]-~]+")
# What every record has, and thus was no call's `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "context", "message"}

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context")
_NOTHING: Mapping[str, str] = {}

log = logging.getLogger(__name__)


@contextmanager
def context(**fields: str) -> Iterator[None]:
    """Add the fields to every line logged in this block, in threads and tasks that copy the
    context too. `request` is what a request or a client's connection is followed by."""
    token = _context.set({**_context.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current(field: str) -> str:
    """The field's value in the context; "" outside of any."""
    return _context.get(_NOTHING).get(field, "")


class ContextFilter(logging.Filter):
    """Gives each record the context that it was logged in."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = _context.get(_NOTHING)
        return True


class RefusalFilter(logging.Filter):
    """Makes one warning, without a traceback, of a request that Django refuses: a bad Host header
    and the like are its sender's mistake, and anybody can send any number of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.security."):
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

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
            # No objects: Django's `request` would show its query.
            if name not in STANDARD and isinstance(value, str | int | float):
                fields[name] = _cut(value)
        fields["message"] = _cut(record.getMessage())
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)[-LONGEST_TRACE:]
        return fields


class TextFormatter(JsonFormatter):
    """One line of logfmt, after the time."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        time = fields.pop("time")
        return f"{time} " + " ".join(f"{name}={_quoted(fields[name])}" for name in fields)


def configuration(process: str) -> dict[str, Any]:
    """What `logging.config.dictConfig` takes, for the process of that name. Raises ValueError
    for a PERCH_LOG_FORMAT that is neither text nor json."""
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
            # Every answer that is no success; what matters of them the API logs itself.
            "django.request": {"level": "CRITICAL"},
            # A line for each job repeats what the engine logs for each operation.
            "procrastinate": {"level": "WARNING"},
            # Connections that come and go; one that cannot be made is a warning.
            "psycopg.pool": {"level": "WARNING"},
        },
    }


def process_of(arguments: Sequence[str]) -> str:
    """What this process is called in the log: its command, or `api` within a web server."""
    if Path(arguments[0]).name in ("manage.py", "perch") and len(arguments) > 1:
        return arguments[1]
    return "api"


def begin(config: dict[str, Any]) -> None:
    """Log by `config` from here on, also warnings and what nobody catches."""
    logging.config.dictConfig(config)
    # No line says it, and to find it out is a good part of what a line costs.
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
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE] + "…"
    return value


def _quoted(value: str | int | float) -> str:
    # What JSON makes of a number, or of a truth, needs no quotes.
    if isinstance(value, str) and BARE.fullmatch(value):
        return value
    return json.dumps(value)
