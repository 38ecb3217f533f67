"""The units of systemd for the Procfile's processes, for `manage.py install_units`."""

import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

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
