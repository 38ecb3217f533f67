"""`manage.py restore SOURCE --state-dir NEW`: makes a state directory from a backup, or with
`--from-store` from the copy of the history in the object store."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.backup.restoring import RestoreRefused, restore, restore_host
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.deployment.service_command import ServiceCommand
from controlplane.deployment.supervision import MARK
from controlplane.history.store.objects import StoreFails, StoreMisnamed, configured_store
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store.restoring import Restored, restore_from_store
from controlplane.management.commands import backup

TIME = "%Y-%m-%d %H:%M:%S.%f"


class Command(ServiceCommand):
    help = "Creates a new state directory from a backup, or from the store of PERCH_HISTORY_STORE."
    refusals = (
        *(*backup.Command.refusals, TreeUntrusted, NotEnoughSpace),
        *(StoreFails, StoreMisnamed, Damaged, WrongKey),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "source", metavar="SOURCE", nargs="?", help="a directory that `backup` has made"
        )
        source.add_argument(
            "--from-store",
            nargs="?",
            const="",
            metavar="HOST",
            help="restore the region from PERCH_HISTORY_STORE: by default the host of "
            "this name whose rows were copied last; `history list` names the hosts",
        )
        parser.add_argument(
            "--region",
            metavar="NAME",
            help="bring back only a lost host of this region, the one that PERCH_HOST_NAME names, "
            "into the database of DATABASE_URL that the other hosts use",
        )
        parser.add_argument(
            "--state-dir", metavar="NEW", required=True, help="a directory that does not exist yet"
        )

    def handle(
        self,
        *args: Any,
        source: str | None,
        from_store: str | None,
        region: str | None,
        **options: Any,
    ) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        if source is None:
            self._restore_from_store(from_store or None, with_rows=region is None)
        else:
            self._restore(Path(source).absolute(), with_rows=region is None)

    def _restore(self, backup: Path, *, with_rows: bool) -> None:
        place = settings.STATE_DIR
        if with_rows:
            manifest = restore(backup, self._say, mark=f"{MARK}={place}")
        else:
            manifest = restore_host(backup, self._say)
        at = f"{manifest.rows_at:%Y-%m-%d %H:%M:%S} UTC"
        if with_rows:
            self._say(f"{place} is the service as of {at}. Start it with: up --state-dir {place}")
        else:
            self._say(
                f"{place} has the branches of {settings.HOST_NAME} as of {at}, and serves this "
                f"host now. Start it with: PERCH_REGION={settings.REGION} up --state-dir {place}"
            )
        _refuse_success(manifest.not_copied)

    def _restore_from_store(self, host: str | None, *, with_rows: bool) -> None:
        store = configured_store()
        if store is None:
            raise RestoreRefused("set PERCH_HISTORY_STORE to the store that has the history")
        restored = restore_from_store(
            store,
            self._say,
            mark=f"{MARK}={settings.STATE_DIR}",
            host=host,
            with_rows=with_rows,
        )
        rows = f"those of {restored.rows_at:%Y-%m-%d %H:%M:%S} UTC" if with_rows else "unchanged"
        self._say(
            f"{settings.STATE_DIR} has {len(restored.branches)} branches, each until its last "
            f"copied commit; the rows are {rows}. "
            f"Start it with: up --state-dir {settings.STATE_DIR}"
        )
        self._list_losses(restored)

    def _list_losses(self, restored: Restored) -> None:
        sign = restored.sign
        # The rows may be newer than the sign: whoever can write to the store can put back a sign.
        last = max(restored.rows_at, *([sign.at] if sign else []), *restored.branches.values())
        self._say(f"The lost host last wrote to the store at {last:{TIME}} UTC.")
        for branch_id, at in restored.branches.items():
            if shortfall := restored.shortfalls.get(branch_id):
                self.stderr.write(
                    f"The branch {branch_id} is not complete after {at:{TIME}} UTC: {shortfall}"
                )
                continue
            since = sign.lost_since(branch_id, at) if sign else at
            if sign and branch_id not in sign.running and last <= since:
                self._say(f"{branch_id}  has everything: it did not run at the host's last sign")
                continue
            self._say(
                f"{branch_id}  has everything until {since:{TIME}} UTC: up to "
                f"{(last - since).total_seconds():.1f} s are lost, and what came after the host's "
                "last write"
            )
        _refuse_success(restored.missing, restored.gaps)


def _refuse_success(missing: Mapping[str, str], gaps: Mapping[str, str] = {}) -> None:
    """Name the branches without data or with a part of it. The rest is restored."""
    lines = [f"The branch {name} has no data: {reason}" for name, reason in missing.items()]
    lines += [f"The branch {name} lacks data: {reason}" for name, reason in gaps.items()]
    if lines:
        raise CommandError("\n".join(lines), returncode=backup.INCOMPLETE)
