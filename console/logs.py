"""The log: one format for the console and its gunicorn, one line for each record.

    2026-11-21T16:20:01.123Z level=INFO process=console logger=… request=… path=… message="…"

With PERCH_LOG_FORMAT=json, each line is an object with the same keys, and `time`. A call adds keys
of its own by `extra`: `log.info("answered", extra={"status": 200})`. `controlplane/logs.py` does
the same for the management service, because neither package may import the other. A test compares
what the two write.
"""

import json
import logging
import logging.config
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from gunicorn.glogging import Logger

# Characters; a value may be untrusted. Of a long traceback the end is kept, as it says most.
MAX_VALUE_LENGTH, MAX_TRACEBACK_LENGTH = 2_000, 16_000
# A value that needs no quotes. Every other value is quoted as JSON in ASCII, so that it contains no
# line break of any script, no control character and no character that changes the text direction.
BARE = re.compile(r"[!#-<>-\[\]-~]+")
# The attributes of every record, which therefore are not from a call's `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "context", "message"}

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context")
_NOTHING: Mapping[str, str] = {}

log = logging.getLogger(__name__)


@contextmanager
def context(**fields: str) -> Iterator[None]:
    """Add the fields to every line logged in this block, also in threads and tasks that copy the
    context. The field `request` identifies a request, also in the API's log."""
    token = _context.set({**_context.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current(field: str) -> str:
    """Return the field's value in the context; "" if it has none."""
    return _context.get(_NOTHING).get(field, "")


class ContextFilter(logging.Filter):
    """Adds to each record the context in which it was logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = _context.get(_NOTHING)
        return True


class RefusalFilter(logging.Filter):
    """Turns the error of a request that Django refuses into a warning without a traceback. A bad
    Host header and the like are the client's mistake, and anybody can send any number of them."""

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
            # Objects are left out: Django's `request` would show its query.
            if name not in STANDARD and isinstance(value, str | int | float):
                fields[name] = _cut(value)
        fields["message"] = _cut(record.getMessage())
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)[-MAX_TRACEBACK_LENGTH:]
        return fields


class TextFormatter(JsonFormatter):
    """One line of logfmt, after the time."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        time = fields.pop("time")
        return f"{time} " + " ".join(f"{name}={_quoted(fields[name])}" for name in fields)


def configuration(process: str) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig` for the process of that name.

    Raises ValueError if PERCH_LOG_FORMAT is neither text nor json.
    """
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
            # Only answers with status 5xx; every request has a line of its own anyway.
            "django.request": {"level": "ERROR"},
        },
    }


class GunicornLogger(Logger):  # type: ignore[misc] # gunicorn has no types
    """Writes the lines of gunicorn, also of its master process, to the console's log. The lines
    about requests are written by the application instead."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True
        begin(configuration("console"))

    def warning(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        about, unreadable, rest = str(msg).partition("Invalid request from ip=")
        if unreadable and not about:
            # The rest quotes the unreadable part: the query, or a header with the session.
            fields = {"client": rest.partition(": ")[0]}
            self.error_log.warning("unreadable request", extra=fields)
        else:
            super().warning(msg, *args, **kwargs)


def begin(config: dict[str, Any]) -> None:
    """Log by `config` from now on, including warnings and uncaught exceptions."""
    logging.config.dictConfig(config)
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
    text = str(value) if isinstance(value, str) else json.dumps(value)
    return text if BARE.fullmatch(text) else json.dumps(text)
