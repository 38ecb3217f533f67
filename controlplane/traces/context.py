"""W3C's trace context (https://www.w3.org/TR/trace-context): the trace that work belongs to, and
the span in it that caused the work.

A caller of the API sends it in the header `traceparent`, and the proxy begins a trace for each
start that it requests. The operation's row keeps it, so the worker's log lines have the same
`trace=` as those of the API or the proxy.
"""

import random
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

# Version, trace, span, flags, and what a later version may append.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_SPAN = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    # 128 and 64 bits, not 0.
    trace: int
    span: int
    # True if its spans are recorded.
    is_sampled: bool = False

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Return the context that the header `traceparent` has; None if it is not valid."""
        found = _FORM.fullmatch(header)
        if found is None:
            return None
        version, trace, span, flags, appended = found.groups()
        is_known = version != "ff" and (version != "00" or appended is None)
        if not is_known or not int(trace, 16) or not int(span, 16):
            return None
        return cls(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))

    @classmethod
    def new(cls) -> Self:
        """Return the first span of a new trace."""
        return cls(random.getrandbits(128) or 1, new_span())

    @property
    def trace_id(self) -> str:
        return f"{self.trace:032x}"

    def of_operation(self, operation_id: uuid.UUID) -> "TraceContext":
        """Return the context of the operation's own span. This span has caused the operation."""
        return self.with_span(operation_id.int & _SPAN)

    def with_span(self, span: int) -> "TraceContext":
        """Return the context of another span of the same trace."""
        return TraceContext(self.trace, span, self.is_sampled)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span:016x}-{int(self.is_sampled):02x}"


def new_span() -> int:
    return random.getrandbits(64) or 1


_current: ContextVar[TraceContext | None] = ContextVar("trace_context", default=None)


@contextmanager
def carrying(context: TraceContext | None) -> Iterator[None]:
    """Give the context to the operations that are scheduled in this block, also in threads and
    tasks that copy the context variables."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current_traceparent() -> str:
    """The header `traceparent` for what the present code causes; "" without a trace."""
    context = _current.get()
    return str(context) if context else ""
