"""`manage.py backup TARGET`: copies the whole service while it runs."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.backup.manifest import NoBackup, read_manifest, verify
from controlplane.backup.metadata_copy import DumpFailed, metadata_database
from controlplane.backup.room import NoRoom
from controlplane.backup.taking import BackupRefused, take_backup
from controlplane.compute.accounts import AccountUnusable
from controlplane.compute.binaries import PostgresUnusable
from controlplane.compute.state_directory import StateDirectoryUnusable, check_ours
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.management.supervision import MARK

REFUSALS = (
    *(BackupRefused, NoRoom, NoBackup, DumpFailed, OtherVersion, OtherSecretKey),
    *(StateDirectoryUnusable, AccountUnusable, PostgresUnusable, OSError),
)
# The exit status of a backup that lacks a branch.
INCOMPLETE = 2


class Command(BaseCommand):
    help = (
        "Copies the whole service into a directory, while it runs; `restore` makes a service "
        "from the copy."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="TARGET", help="a directory that does not exist yet")
        parser.add_argument(
            "--verify", action="store_true", help="make no backup, but verify the one at TARGET"
        )
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory, as given to `up`"
        )

    def handle(self, *args: Any, target: str, **options: Any) -> None:
        # SIGTERM raises SystemExit, so that an unfinished backup is removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        place = Path(target).absolute()
        try:
            if options["verify"]:
                self._verify(place)
            else:
                self._take(place)
        except REFUSALS as error:
            raise CommandError(str(error)) from error

    def _take(self, target: Path) -> None:
        check_ours()
        began = time.monotonic()
        with metadata_database(mark=f"{MARK}={settings.STATE_DIR}"):
            refuse_other_version()
            refuse_other_key()
            manifest = take_backup(target, self._say)
        self._say(
            f"{target} holds {len(manifest.branches)} branches, {manifest.size / 1e6:,.0f} MB, "
            f"after {time.monotonic() - began:.1f} s.\n"
            "It contains every password and key of the service: keep it as secret as the service."
        )
        if manifest.not_copied:
            reasons = "".join(f"\n  {name}: {why}" for name, why in manifest.not_copied.items())
            raise CommandError(f"these branches are not in it:{reasons}", returncode=INCOMPLETE)

    def _verify(self, backup: Path) -> None:
        if problems := verify(backup):
            raise CommandError("\n  ".join([f"{backup} is not complete:", *problems]))
        manifest = read_manifest(backup)
        self._say(
            f"{backup} is unchanged since it was written at {manifest.rows_at:%Y-%m-%d %H:%M} UTC: "
            f"{len(manifest.branches)} branches, {manifest.size / 1e6:,.0f} MB."
        )

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
