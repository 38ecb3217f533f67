#!/usr/bin/env python3
"""Perch's commands. The control plane's where it is installed, else the console's alone."""

import os
import sys
from importlib.util import find_spec


def main() -> None:
    has_controlplane = find_spec("procrastinate") is not None
    settings = "controlplane.settings" if has_controlplane else "console.settings"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
