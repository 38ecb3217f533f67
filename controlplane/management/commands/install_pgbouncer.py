"""`manage.py install_pgbouncer`: builds a PgBouncer that keeps prepared statements."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlplane import durable
from controlplane.compute.pooler import built_pgbouncer, pooler_version
from controlplane.deployment.service_command import ServiceCommand

# The release whose source is built, and the part of it that has PgBouncer.
LATER = {"Debian": ("trixie", "main"), "Ubuntu": ("noble", "universe")}
# The programs that this needs, and the packages that have them.
NEEDED = {
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "gcc": "gcc",
    "make": "make",
    "patch": "patch",
    "pkg-config": "pkg-config",
    "xz": "xz-utils",
}
LIBEVENT = "libevent-dev"
STEP_TIMEOUT = 900.0  # seconds for one step


class BuildFailed(Exception):
    """PgBouncer could not be built; the message says why."""


def build_pgbouncer(say: Callable[[str], object]) -> Path:
    """Build PgBouncer and put it in the state directory, in place of an earlier one. Return its
    path. `say` is called with a line of text at each step. Raises BuildFailed, OSError."""
    if lacking := sorted(NEEDED[program] for program in NEEDED if not shutil.which(program)):
        raise BuildFailed(f"this needs programs of the packages {', '.join(lacking)}")
    with tempfile.TemporaryDirectory(prefix="perch-pgbouncer-") as scratch:
        place = Path(scratch)
        say("Fetching the source …")
        _fetch(place)
        say("Building, which takes a minute or two …")
        return _install(_build(place))


def _fetch(place: Path) -> None:
    """Fetch the source package and the headers of libevent."""
    origin, release, mirror = _own_release()
    later, component = LATER[origin]
    sources = place / "sources.list"
    sources.write_text(
        f"deb {mirror} {release} main\ndeb-src {mirror} {later} {component}\n", encoding="utf-8"
    )
    for directory in ("lists/partial", "cache/archives/partial"):
        (place / directory).mkdir(parents=True)
    options = [
        *("-qq", "-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-"),
        *("-o", f"Dir::State::Lists={place / 'lists'}", "-o", f"Dir::Cache={place / 'cache'}"),
        # apt's own account cannot enter the directory.
        *("-o", "APT::Sandbox::User="),
    ]
    for arguments in (
        ["update"],
        ["source", "--download-only", "pgbouncer"],
        ["download", LIBEVENT],
    ):
        _run("apt-get", *options, *arguments, directory=place)


def _own_release() -> tuple[str, str, str]:
    """The distribution, its release and its mirror, from the host's own package sources."""
    fields = "$(ORIGIN) $(CODENAME) $(REPO_URI)"
    targets = _run("apt-get", "indextargets", "--format", fields, "Created-By: Packages")
    for line in targets.splitlines():
        origin, _, release_and_mirror = line.partition(" ")
        release, _, mirror = release_and_mirror.partition(" ")
        # Skip the release's updates, and other archives of the same origin.
        if origin in LATER and release and not {"-", "/"} & set(release):
            return origin, release, mirror
    raise BuildFailed("this host's apt has no package source of Debian or Ubuntu")


def _build(place: Path) -> Path:
    """Build the program. Returns its path in the scratch directory."""
    headers, source = place / "libevent", place / "source"
    source.mkdir()
    _run("dpkg-deb", "--extract", str(_only(place, f"{LIBEVENT}_*.deb")), str(headers))
    original = _only(place, "pgbouncer_*.orig.tar.*")
    _run("tar", "--extract", f"--file={original}", "--strip-components=1", directory=source)
    _run("tar", "--extract", f"--file={_only(place, '*.debian.tar.*')}", directory=source)
    patches = source / "debian" / "patches"
    for line in (patches / "series").read_text().splitlines():
        if name := line.partition("#")[0].strip():
            _run("patch", "--silent", "-p1", f"--input={patches / name}", directory=source)
    library = _only(headers / "usr" / "lib", "*/libevent.a")
    include = headers / "usr" / "include"
    libevent = {
        "LIBEVENT_CFLAGS": f"-I{include} -I{include / library.parent.name}",
        "LIBEVENT_LIBS": str(library),
    }
    _run("./configure", "--without-openssl", "--without-cares", directory=source, **libevent)
    _run("make", "pgbouncer", directory=source)
    return source / "pgbouncer"


def _install(built: Path) -> Path:
    """Put the program in its place. Running poolers go on with the earlier program."""
    _run(str(built), "--version")
    program = built_pgbouncer()
    program.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = program.with_name(".new")
    shutil.copyfile(built, draft)
    draft.chmod(0o755)
    durable.rename(draft, program)
    return program


def _only(place: Path, pattern: str) -> Path:
    found = next(place.glob(pattern), None)
    if found is None:
        raise BuildFailed(f"apt fetched no {pattern}")
    return found


def _run(*command: str, directory: Path | None = None, **environment: str) -> str:
    """Run the command and return its output. Raises BuildFailed with the end of its errors."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STEP_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{command[0]} did not end within {STEP_TIMEOUT:.0f} s") from error
    if done.returncode:
        errors = (done.stderr or done.stdout).strip()[-600:]
        raise BuildFailed(f"{Path(command[0]).name} failed: {errors}")
    return done.stdout


class Command(ServiceCommand):
    help = (
        "Builds PgBouncer from the source package of a later release of Debian or Ubuntu, for "
        "hosts whose own is older than 1.21, and puts it in the state directory."
    )
    refusals = (BuildFailed, OSError)

    def handle(self, *args: Any, **options: Any) -> None:
        program = build_pgbouncer(self.stdout.write)
        version = ".".join(map(str, pooler_version(str(program))))
        self.stdout.write(
            f"{program} is PgBouncer {version}. Poolers that start from now on use it, unless "
            "PERCH_PGBOUNCER names another."
        )
