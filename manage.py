#!/usr/bin/env python3
"""Perch's commands: the control plane's if it is installed, otherwise only the console's.

When installed, this is the module `perch.manage`, and the program `perch` calls its `main`.
"""

import argparse
import os
import sys
from importlib import metadata
from importlib.util import find_spec

from django.core.management import (
    ManagementUtility,
    find_commands,
    get_commands,
    load_command_class,
)
from django.db import OperationalError

CONTROLPLANE = "controlplane"


class Commands(ManagementUtility):
    """Django's commands and Perch's own; the main help lists only Perch's own."""

    def main_help_text(self, commands_only: bool = False) -> str:
        if commands_only:
            return super().main_help_text(commands_only=True)
        own = [name for name, app in get_commands().items() if app == CONTROLPLANE]
        own.sort(key=lambda name: (name != "up", name))
        lines = [f"usage: {self.prog_name} COMMAND [options]", ""]
        width = max(map(len, own), default=0) + 2
        lines += [f"  {name:{width}}{load_command_class(CONTROLPLANE, name).help}" for name in own]
        if not own:
            lines.append(f"Only the console is installed, which gunicorn runs. {how_to_install()}")
        lines += [
            "",
            f"{self.prog_name} COMMAND --help tells of each; {self.prog_name} --version of this.",
            f"Django's commands work as well: {self.prog_name} help --commands lists them all.",
        ]
        return "\n".join(lines)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["version"]):
        print(metadata.version("perch-postgres"))
        return
    has_controlplane = find_spec("psycopg") is not None
    if arguments and not arguments[0].startswith("-"):
        # `install-units` is the command `install_units`.
        sys.argv[1] = arguments[0] = arguments[0].replace("-", "_")
    if not has_controlplane and arguments and arguments[0] in controlplane_commands():
        sys.exit(f"{arguments[0]} belongs to the control plane. {how_to_install()}")
    settings = "controlplane.settings" if has_controlplane else "console.settings"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
    take_place(arguments)
    try:
        Commands(sys.argv).execute()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OperationalError as error:
        if "--traceback" in arguments:
            raise
        sys.exit(database_problem(error))


def database_problem(error: OperationalError) -> str:
    """What to say of a database that has failed a command with this error."""
    from django.conf import settings

    from controlplane.compute.processes.metadata import why_unreachable
    from controlplane.database.version import conninfo

    # The error of a pool says only that there was no connection in time.
    words = " ".join((why_unreachable(conninfo()) or str(error)).split())
    if "DATABASE_URL" in os.environ:
        return f"The database of DATABASE_URL does not answer: {words}"
    return (
        "DATABASE_URL is not set, and the Postgres that `up` runs does not answer: start `up`, or "
        "set PERCH_STATE_DIR (--state-dir) or DATABASE_URL as the service has it. The state "
        f"directory of this command is {settings.STATE_DIR} ({words})"
    )


def controlplane_commands() -> list[str]:
    """The names of the control plane's commands, whether or not they can run here."""
    found = find_spec(f"{CONTROLPLANE}.management")
    folders = found.submodule_search_locations if found else None
    return [name for folder in folders or () for name in find_commands(folder)]


def how_to_install() -> str:
    return "Install the extra `controlplane` too: pip install 'perch_postgres-….whl[controlplane]'"


def take_place(arguments: list[str]) -> None:
    """Set the state directory from --state-dir, and for `restore` the region from --region, before
    Django reads its settings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--state-dir")
    if arguments[:1] == ["restore"]:
        parser.add_argument("--region")
    known, _ = parser.parse_known_args(arguments)
    if known.state_dir:
        os.environ["PERCH_STATE_DIR"] = known.state_dir
    if getattr(known, "region", None):
        os.environ["PERCH_REGION"] = known.region


if __name__ == "__main__":
    main()
