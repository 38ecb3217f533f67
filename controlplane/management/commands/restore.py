"""`manage.py restore SOURCE --state-dir NEW`: makes a state directory from a backup."""

import signal
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.backup.restoring import RestoreRefused, restore
from controlplane.compute.tree import TreeUntrusted
from controlplane.management.commands import backup
from controlplane.management.supervision import MARK


class Command(BaseCommand):
    help = "Creates a new state directory from a backup."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", metavar="SOURCE", help="a directory that `backup` has made")
        parser.add_argument(
            "--state-dir", metavar="NEW", required=True, help="a directory that does not exist yet"
        )

    def handle(self, *args: Any, source: str, **options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            manifest = restore(
                Path(source).absolute(),
                self._say,
                mark=f"{MARK}={settings.STATE_DIR}",
            )
        except (*backup.REFUSALS, RestoreRefused, TreeUntrusted) as error:
            raise CommandError(str(error)) from error
        self._say(
            f"{settings.STATE_DIR} is the service as of {manifest.rows_at:%Y-%m-%d %H:%M:%S} UTC. "
            f"Start it with: up --state-dir {settings.STATE_DIR}"
        )
        for branch_id, reason in manifest.not_copied.items():
            self.stderr.write(f"The branch {branch_id} has no data: {reason}")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
