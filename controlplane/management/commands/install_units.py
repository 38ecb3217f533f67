"""`manage.py install_units`: writes the units of systemd for this installation."""

import os
import re
import stat
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
from controlplane.deployment.supervision import Program, programs_of

# Characters that stand for themselves in every setting of a unit, and in PATH.
PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
# What the units hide from the processes (ProtectHome=, PrivateTmp=).
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108
TARGET = "perch.target"
# Run as the host shuts down, once the worker has stopped.
STOPS_COMPUTES = Program("computes", "python manage.py computes stop --all")


class UnitsUnusable(Exception):
    """The units would not work with this installation; the message says why."""


def rendered_units(base_dir: Path, *, state_dir: Path) -> Mapping[str, str]:
    """The files by name: the target, a unit for each process of the Procfile in `base_dir`, which
    runs the Procfile's command with the programs beside this Python, and one that stops the
    computes as the host shuts down."""
    templates = base_dir / "deploy" / "systemd"
    places = {
        "directory": base_dir,
        "path": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        "state_dir": state_dir,
    }
    units = {TARGET: (templates / TARGET).read_text()}
    for program in (*programs_of(base_dir / "Procfile"), STOPS_COMPUTES):
        name = f"perch-{program.name}.service"
        unit = (templates / name).read_text()
        unit = unit.replace("@service.conf@", (templates / "service.conf").read_text().rstrip())
        unit = unit.replace("@command@", _quoted(program.command))
        for key, place in {**places, "name": program.name}.items():
            unit = unit.replace(f"@{key}@", str(place))
        units[name] = unit
    return units


def check_place(what: str, path: Path) -> None:
    """Raises UnitsUnusable if the processes could not reach the directory of `what`, or its name
    has a character that systemd would read differently."""
    if not PLAIN.fullmatch(str(path)):
        raise UnitsUnusable(
            f"{what} is in {path}: a unit cannot name this path; use letters, digits and ./_-+"
        )
    for hidden in HIDDEN:
        if path.is_relative_to(hidden):
            raise UnitsUnusable(
                f"{what} is in {path}, and the units hide {hidden} from the processes: have "
                f"{what} elsewhere, such as in /opt, /usr or /var/lib"
            )
    for parent in (path, *path.parents):
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise UnitsUnusable(f"other accounts than the owner's must be able to enter {parent}")


def _quoted(command: str) -> str:
    """The shell command between the double quotes of ExecStart=."""
    for special in ("\\", '"'):
        command = command.replace(special, "\\" + special)
    return command.replace("%", "%%").replace("$", "$$")


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
