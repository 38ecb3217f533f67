"""`manage.py backup TARGET`: copies the whole service while it runs, or verifies such a copy."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.backup.manifest import Manifest, NoBackup, read_manifest, verify
from controlplane.backup.metadata_copy import DumpFailed, database_answers, metadata_database
from controlplane.backup.restoring import RestoreRefused
from controlplane.backup.taking import (
    BackupRefused,
    NoRoom,
    record_backup,
    record_verification,
    take_backup,
)
from controlplane.backup.trial import TrialFailed, trial_directory, try_out
from controlplane.compute.data.state_directory import StateDirectoryUnusable, check_ours
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.deployment.service_command import ServiceCommand
from controlplane.deployment.supervision import MARK, end_leftovers

# The exit status of a backup that lacks a branch.
INCOMPLETE = 2
# How many branches `--verify` starts.
SAMPLE_SIZE = 3


class Command(ServiceCommand):
    help = (
        "Copies the whole service into a directory, while it runs; `restore` makes a service "
        "from the copy."
    )
    refusals = (
        *(BackupRefused, NoRoom, NoBackup, DumpFailed, OtherVersion, OtherSecretKey),
        *(RestoreRefused, TrialFailed),
        *(StateDirectoryUnusable, AccountUnusable, PostgresUnusable, OSError),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="TARGET", help="a directory that does not exist yet")
        parser.add_argument(
            "--verify",
            action="store_true",
            help="make no backup, but verify the one at TARGET: read all of it, restore its rows "
            "and a sample of its branches to a scratch directory, and start them",
        )
        parser.add_argument(
            "--sample",
            type=int,
            default=SAMPLE_SIZE,
            metavar="COUNT",
            help=f"how many branches --verify starts, chosen at random; {SAMPLE_SIZE} by default",
        )
        parser.add_argument(
            "--scratch",
            metavar="DIR",
            help="where --verify restores to; beside TARGET by default",
        )
        # For the process that --verify starts, whose state directory is the scratch directory.
        parser.add_argument("--as-trial", action="store_true", help=argparse.SUPPRESS)
        super().add_arguments(parser)

    def handle(self, *args: Any, target: str, **options: Any) -> None:
        # SIGTERM raises SystemExit, so that an unfinished backup is removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        place = Path(target).absolute()
        if options["as_trial"]:
            try_out(place, options["sample"], self._say, mark=f"{MARK}={settings.STATE_DIR}")
        elif options["verify"]:
            self._verify(place, options["sample"], options["scratch"])
        else:
            self._take(place)

    def _take(self, target: Path) -> None:
        check_ours()
        began = time.monotonic()
        with metadata_database(mark=f"{MARK}={settings.STATE_DIR}"):
            refuse_other_version()
            refuse_other_key()
            manifest = take_backup(target, self._say)
            if not manifest.not_copied:
                record_backup(manifest.host_name, manifest.rows_at)
        self._say(
            f"{target} holds {len(manifest.branches)} branches, {manifest.size / 1e6:,.0f} MB, "
            f"after {time.monotonic() - began:.1f} s.\n"
            "It contains every password and key of the service: keep it as secret as the service."
        )
        if manifest.not_copied:
            reasons = "".join(f"\n  {name}: {why}" for name, why in manifest.not_copied.items())
            raise CommandError(f"these branches are not in it:{reasons}", returncode=INCOMPLETE)

    def _verify(self, backup: Path, sample: int, scratch: str | None) -> None:
        if problems := verify(backup):
            raise CommandError("\n  ".join([f"{backup} is not complete:", *problems]))
        manifest = read_manifest(backup)
        self._say(
            f"{backup} is unchanged since it was written at {manifest.rows_at:%Y-%m-%d %H:%M} UTC: "
            f"{len(manifest.branches)} branches, {manifest.size / 1e6:,.0f} MB."
        )
        with trial_directory(backup, scratch) as directory:
            self._try_out(backup, manifest, sample, directory)
        self._note_verified(backup, manifest)

    def _try_out(self, backup: Path, manifest: Manifest, sample: int, directory: Path) -> None:
        """Run a process whose state directory is `directory`. Raises TrialFailed."""
        others = ("DATABASE_URL", "PERCH_SECRET_KEY")
        known = {name: value for name, value in os.environ.items() if name not in others}
        # Of a trial that was killed.
        end_leftovers(directory)
        program = settings.BASE_DIR / "manage.py"
        with subprocess.Popen(
            [
                *(sys.executable, str(program), "backup", str(backup)),
                *("--as-trial", "--sample", str(sample)),
            ],
            env={
                **known,
                "PERCH_STATE_DIR": str(directory),
                "PERCH_REGION": manifest.region,
                "PERCH_HOST_NAME": manifest.host_name,
                "PERCH_SECRET_KEY_FILE": str(backup / "secret-key"),
            },
            stdin=subprocess.DEVNULL,
        ) as trial:
            try:
                trial.wait()
            except BaseException:
                trial.terminate()
                raise
        if trial.returncode:
            raise TrialFailed(f"{backup} cannot be restored")

    def _note_verified(self, backup: Path, manifest: Manifest) -> None:
        """Note it for /healthz, if the backup is of the service that the settings name and this
        service runs. A backup may be verified anywhere."""
        if settings.SECRET_KEY.strip() != (backup / "secret-key").read_text().strip():
            return
        try:
            if database_answers():
                refuse_other_version()
                record_verification(manifest.host_name, manifest.rows_at)
                return
        except OtherVersion:
            pass
        self._say("The service does not run, so its /healthz does not know of this.")
