"""`manage.py logs ENDPOINT`: shows what an endpoint's Postgres and PgBouncer log on this host."""

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from typing import Any

from django.core.management.base import CommandParser
from django.db import connection

from controlplane.compute.data.state_directory import StateDirectoryUnusable, check_ours
from controlplane.compute.host.log_lines import SOURCES, Follower, LogLine, last_lines
from controlplane.deployment.service_command import ServiceCommand, endpoint_here

# Seconds between two looks at files that are followed.
POLL_INTERVAL = 0.25


class Command(ServiceCommand):
    help = "Shows the logs of an endpoint's Postgres and PgBouncer, without what its clients wrote."
    refusals = (StateDirectoryUnusable,)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "endpoint", metavar="ENDPOINT", help="its id, such as ep-quiet-heron-123456"
        )
        parser.add_argument(
            "-f", "--follow", action="store_true", help="go on with what is logged, until Ctrl-C"
        )
        parser.add_argument(
            "--lines", type=int, default=100, metavar="N", help="the last N lines; 100 by default"
        )
        parser.add_argument("--source", choices=SOURCES, help="only this log")
        parser.add_argument(
            "--whole",
            action="store_true",
            help="also what clients wrote: their statements, values and messages",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object per line")
        super().add_arguments(parser)

    def handle(self, *args: Any, endpoint: str, **options: Any) -> None:
        branch_id = branch_of(endpoint)
        sources = [options["source"]] if options["source"] else list(SOURCES)
        # Before the last lines are read, so that none in between is missed.
        followers = [Follower(branch_id, source) for source in sources]
        with ExitStack() as open_files, suppress(KeyboardInterrupt, BrokenPipeError):
            for follower in followers:
                open_files.enter_context(closing(follower))
            lines = last_lines(branch_id, sources=sources, most=max(0, options["lines"]))
            self._show(lines, whole=options["whole"], as_json=options["json"])
            while options["follow"]:
                for follower in followers:
                    new = follower.new_lines()
                    self._show(new, whole=options["whole"], as_json=options["json"])
                time.sleep(POLL_INTERVAL)

    def _show(self, lines: Iterable[LogLine], *, whole: bool, as_json: bool) -> None:
        for line in lines:
            shown = line if whole else line.redacted()
            self.stdout.write(json.dumps(shown.as_json()) if as_json else text_of(shown))
        self.stdout.flush()


def branch_of(endpoint_id: str) -> str:
    """The branch whose logs are the endpoint's. Raises CommandError, StateDirectoryUnusable."""
    try:
        check_ours()
        return endpoint_here(endpoint_id).branch_id
    finally:
        connection.close()


def text_of(line: LogLine) -> str:
    shown = line.as_json()
    # Nothing that a terminal would interpret.
    message = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in line.message)
    return f"{shown['at'] or '-'}  {line.source}  {line.level or '-'}  {message}"
