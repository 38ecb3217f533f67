"""Reads the service's logs as a program would. Every line must have the right format."""

import json
import re
from pathlib import Path
from typing import Any

from tests.support.stack import Stack
from tests.support.waiting import wait_for

_LINE = re.compile(r"(?P<time>\S+Z)(?P<fields>(?: \w+=(?:\"(?:\\.|[^\"\\])*\"|[^\s\"=\\]+))+)")
_FIELD = re.compile(r"(\w+)=(\"(?:\\.|[^\"\\])*\"|[^\s\"=\\]+)")


def parse(line: str) -> dict[str, str]:
    """Return the fields of a line."""
    found = _LINE.fullmatch(line)
    assert found, f"no line of our format: {line!r}"
    values = {
        name: json.loads(value) if value.startswith('"') else value
        for name, value in _FIELD.findall(found["fields"])
    }
    return {"time": found["time"], **values}


def read_log(state_dir: Path, program: str) -> list[dict[str, str]]:
    """Return the lines of a program in the Procfile, without one that is being written."""
    text = (state_dir / "log" / f"{program}.log").read_text()
    return [parse(line) for line in text.split("\n")[:-1]]


def await_line(stack: Stack, program: str, **fields: Any) -> dict[str, str]:
    """Wait for a line with these fields, and return it."""
    wanted = {name: str(value) for name, value in fields.items()}
    found: list[dict[str, str]] = []

    def is_there() -> bool:
        lines = read_log(stack.state_dir, program)
        found[:] = [line for line in lines if wanted.items() <= line.items()]
        return bool(found)

    wait_for(is_there, f"a line of {program} with {wanted}", timeout=10)
    return found[0]
