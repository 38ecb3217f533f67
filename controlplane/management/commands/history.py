"""`manage.py history`: lists what the store of PERCH_HISTORY_STORE has, checks that branches can be
restored from it, and deletes the copy of a lost host."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.compute.data.state_directory import StateDirectoryUnusable, check_ours, identity
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.space import size_text
from controlplane.deployment.service_command import ServiceCommand
from controlplane.history.store.drills import verify
from controlplane.history.store.host_copies import last_sign
from controlplane.history.store.layout import BranchList, branch_folder, host_folder, read_list
from controlplane.history.store.objects import Store, StoreFails, StoreMisnamed, configured_store
from controlplane.history.store.packing import Damaged, WrongKey

LEFT_OUT = (
    "Not in the store, and lost with their host: projects that keep no history "
    "(history_retention_seconds is 0)."
)


class Command(ServiceCommand):
    help = "Lists or checks the copy of the history in the store of PERCH_HISTORY_STORE."
    refusals = (
        *(StoreFails, StoreMisnamed, Damaged, WrongKey),
        *(StateDirectoryUnusable, AccountUnusable, PostgresUnusable, OSError),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="list the hosts and branches that the store has")
        check = actions.add_parser(
            "verify", help="restore branches into a place of their own, check them, remove them"
        )
        check.add_argument("branches", metavar="BRANCH", nargs="*", help="by default, a sample")
        check.add_argument(
            "--sample", type=int, default=3, metavar="N", help="how many branches (default: 3)"
        )
        forget = actions.add_parser("forget", help="delete the copy of a host that is lost")
        forget.add_argument("host", metavar="HOST", help="its id, as `history list` prints it")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        try:
            store = configured_store()
            if store is None:
                raise CommandError("set PERCH_HISTORY_STORE to the store that has the history")
            if action == "list":
                self._list(store)
            elif action == "verify":
                self._verify(store, options["branches"], options["sample"])
            else:
                self._forget(store, options["host"])
        except LockTimeout as error:
            raise CommandError("another check is under way") from error

    def _list(self, store: Store) -> None:
        for region in store.folders("regions"):
            for host in store.folders(f"regions/{region}"):
                self._list_host(store, region, host)
        self.stdout.write(LEFT_OUT)

    def _list_host(self, store: Store, region: str, host: str) -> None:
        folder = host_folder(region, host)
        sizes = store.names(folder)
        if not sizes:
            # A folder as a store keeps the empty folders of a host that was forgotten.
            return
        sign = last_sign(store, folder)
        self.stdout.write(
            f"region {region}, host {host}: {size_text(sum(sizes.values()))}, "
            f"last sign {_text(sign.at) if sign else 'unknown'}, "
            f"rows of {_rows_at(name for name in sizes if '/metadata/' in name)}"
        )
        for branch_id in store.folders(f"{folder}/branches"):
            place = branch_folder(folder, branch_id)
            branch = read_list(store, place)
            size = sum(size for name, size in sizes.items() if name.startswith(f"{place}/"))
            if branch is not None:
                self.stdout.write(f"  {_described(branch)}, {size_text(size)}")

    def _verify(self, store: Store, branches: Sequence[str], sample: int) -> None:
        check_ours()
        host = host_folder(settings.REGION, identity())
        results = verify(store, host, say=self._say, branch_ids=branches, at_most=sample)
        if any(result.error for result in results):
            raise CommandError("not every branch can be restored from the store")
        if not results:
            raise CommandError("the store has no branch of this host that can be restored")

    def _forget(self, store: Store, host: str) -> None:
        if (settings.STATE_DIR / "identity").exists() and host == identity():
            raise CommandError(f"{host} is this host, whose copy is in use")
        folders = [
            host_folder(region, host)
            for region in store.folders("regions")
            if host in store.folders(f"regions/{region}")
        ]
        if not folders:
            raise CommandError(f"the store has no host {host}")
        for folder in folders:
            store.delete(store.names(folder))
        self.stdout.write(f"The copy of {host} is deleted.")


def _described(branch: BranchList) -> str:
    bases = [one.base for chain in branch.chains for one in chain.usable_bases]
    first = bases[0] if bases else branch.data
    return (
        f"{branch.project_id}  {branch.branch_id}  from {_text(first.at if first else None)} until "
        f"{_text(branch.copied_at)}, {len(bases)} bases" + (", deleted" if branch.gone_at else "")
    )


def _rows_at(names: Iterable[str]) -> str:
    newest = max((name.rsplit("/", 1)[-1] for name in names), default="")
    return newest.partition("-")[0] or "never"


def _text(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "never"
