"""Reads a request's JSON at a bounded cost for everybody else in the process.

Python's own decoder in C lets nobody else run until it is through, and a large body of small values
takes it seconds and memory twenty times its size. So only a small body is given to it. A large one
is read by the decoder in Python, in a thread, which counts the values.
"""

import json
import json.scanner
from collections.abc import Callable
from typing import Any

from controlplane.proxy.over_http.refusals import RequestRefused

# In bytes. Some milliseconds, whatever is in it.
SMALL_BODY = 65_536
MOST_VALUES = 1_000_000


class _TooManyValues(Exception):
    pass


def unparsable(reason: str) -> RequestRefused:
    return RequestRefused(f"could not parse the HTTP request body: {reason}")


def read_json(body: bytes) -> Any:
    """Not to be called on the event loop for more than a SMALL_BODY. Raises RequestRefused."""
    decoder = _SMALL if len(body) <= SMALL_BODY else _CountingDecoder()
    try:
        return decoder.decode(body.decode())
    except _TooManyValues:
        raise RequestRefused(
            f"a request has at most {MOST_VALUES} values", status=413, sqlstate="54000"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise unparsable(reason) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_SMALL = json.JSONDecoder(parse_constant=_refuse_constant)


class _CountingDecoder(json.JSONDecoder):
    """Raises _TooManyValues."""

    def __init__(self) -> None:
        super().__init__(
            parse_constant=_refuse_constant,
            parse_int=self._counted(int),
            parse_float=self._counted(float),
        )
        self._left = MOST_VALUES
        for kind in ("array", "object", "string"):
            parse = getattr(self, f"parse_{kind}")
            setattr(self, f"parse_{kind}", self._counted(parse))
        # The decoder in Python; the one in C was made of what was before.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_one(*given: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise _TooManyValues
            return parse(*given)

        return parse_one
