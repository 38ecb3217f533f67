"""Parses a request's JSON at a bounded cost to the rest of the process.

Python's decoder in C lets no other thread run until it is finished, and a large body of small
values takes it seconds, and memory of twenty times the body's size. So it gets only small bodies. A
large body is parsed by the decoder in Python, in a thread, which counts the values.
"""

import json
import json.scanner
from collections.abc import Callable
from typing import Any

from controlplane.proxy.over_http.errors import RequestRefused

# In bytes. Takes some milliseconds, whatever the body contains.
SMALL_BODY_BYTES = 16_384
MAX_VALUES = 1_000_000


class _TooManyValues(Exception):
    pass


def unparsable(reason: str) -> RequestRefused:
    return RequestRefused(f"could not parse the HTTP request body: {reason}")


def read_json(body: bytes) -> Any:
    """Parses the body. A body larger than SMALL_BODY_BYTES must not be parsed on the event loop.
    Raises RequestRefused."""
    decoder = _SMALL if len(body) <= SMALL_BODY_BYTES else _CountingDecoder()
    try:
        return decoder.decode(body.decode())
    except _TooManyValues:
        raise RequestRefused(
            f"too many values in the request (max is {MAX_VALUES})", status=413, sqlstate="54000"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise unparsable(reason) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


_SMALL = json.JSONDecoder(parse_constant=_refuse_constant)


class _CountingDecoder(json.JSONDecoder):
    """Raises _TooManyValues."""

    def __init__(self) -> None:
        super().__init__(
            parse_constant=_refuse_constant,
            parse_int=self._counted(int),
            parse_float=self._counted(float),
        )
        self._left = MAX_VALUES
        for kind in ("array", "object", "string"):
            parse = getattr(self, f"parse_{kind}")
            setattr(self, f"parse_{kind}", self._counted(parse))
        # The decoder in Python. The one in C was made before the functions were replaced.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_one(*given: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise _TooManyValues
            return parse(*given)

        return parse_one
