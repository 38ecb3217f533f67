#!/usr/bin/env python3
"""Perch's commands. The control plane's where it is installed, else the console's alone."""

import argparse
import os
import sys
from importlib.util import find_spec


def main() -> None:
    has_controlplane = find_spec("procrastinate") is not None
    settings = "controlplane.settings" if has_controlplane else "console.settings"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    take_state_dir(sys.argv[1:])

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


def take_state_dir(arguments: list[str]) -> None:
    """Let --state-dir decide where the settings, which are read first of all, find their state."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--state-dir")
    known, _ = parser.parse_known_args(arguments)
    if known.state_dir:
        os.environ["PERCH_STATE_DIR"] = known.state_dir


if __name__ == "__main__":
    main()
