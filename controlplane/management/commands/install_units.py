"""`manage.py install_units`: writes the units of systemd for this installation."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane import durable
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.deployment.process_setup import prepare_for_units
from controlplane.deployment.service_command import ServiceCommand
from controlplane.deployment.units import TARGET, UnitsUnusable, check_place, rendered_units

NEXT_STEPS = """
Next:
  1. Write the settings of the processes to /etc/perch/environment, at least DATABASE_URL and
     PERCH_SECRET_KEY, and let only root read it (chmod 600).
  2. Make or migrate the database:
       systemd-run --pipe --wait --property=EnvironmentFile=/etc/perch/environment \\
         --setenv=PERCH_STATE_DIR={state_dir} {program} migrate
  3. Start the processes that this host should have, now and at each start of the host:
       systemctl daemon-reload
       systemctl enable --now {names}

For Prometheus and Grafana: {deploy}/prometheus has alert rules, {deploy}/grafana a dashboard.
"""


class Command(ServiceCommand):
    help = "Writes the units of systemd that run this installation's processes."
    refusals = (AccountUnusable, UnitsUnusable, OSError)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--directory",
            metavar="DIR",
            type=Path,
            default=Path("/etc/systemd/system"),
            help="where to write them, by default /etc/systemd/system",
        )
        parser.add_argument(
            "--force", action="store_true", help="overwrite files that differ from the units"
        )
        parser.add_argument(
            "--state-dir", metavar="DIR", help="the state directory of the processes"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for what, place in (
            ("the virtual environment", sys.prefix),
            ("Python", sys.base_prefix),
            ("Perch", settings.BASE_DIR),
            ("the state directory", settings.STATE_DIR),
        ):
            check_place(what, Path(place))
        if not settings.SOCKET_DIR.is_relative_to(settings.STATE_DIR):
            raise UnitsUnusable(
                f"the path of the state directory {settings.STATE_DIR} is too long for the "
                "sockets in it: choose a shorter one"
            )
        units = rendered_units(settings.BASE_DIR, state_dir=settings.STATE_DIR)
        self._write(options["directory"], units, force=options["force"])
        if os.geteuid() == 0:
            prepare_for_units()
        self.stdout.write(
            NEXT_STEPS.format(
                state_dir=settings.STATE_DIR,
                program=Path(sys.executable).parent / "perch",
                deploy=settings.BASE_DIR / "deploy",
                names=" ".join([TARGET, *sorted(units.keys() - {TARGET})]),
            )
        )

    def _write(self, directory: Path, units: Mapping[str, str], *, force: bool) -> None:
        """Write the units, or none if one of them exists with another content. Raises CommandError,
        OSError."""
        paths = {directory / name: text for name, text in units.items()}
        written = {path: path.read_text() for path in paths if path.exists()}
        changed = [str(path) for path, text in written.items() if text != paths[path]]
        if changed and not force:
            raise CommandError(
                f"{', '.join(changed)}: differs from the unit of this version. Keep your own "
                "settings in drop-ins (systemctl edit UNIT), and overwrite it by --force"
            )
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            if written.get(path) != text:
                durable.write(path, text.encode(), 0o644)
                self.stdout.write(f"{path}: written")
            else:
                self.stdout.write(f"{path}: unchanged")
