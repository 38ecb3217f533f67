"""The extensions that the owner of a database may create, beyond those that Postgres itself trusts.

For a user who is no superuser, `CREATE EXTENSION` needs `trusted = true` in the extension's control
file. So computes look first in a directory of the platform (`extension_control_path`, since
Postgres 18). It holds copies of the extensions in OFFERED, marked as trusted and with the grants
that their users need. With a Postgres before 18, only what it trusts itself is offered. The reasons
are in docs/reference/extensions.md.
"""

import functools
import hashlib
import os
import re
import shutil
from pathlib import Path

from django.conf import settings

from controlplane.compute.catalog.applying import GROUP
from controlplane.compute.host.accounts import shared_account
from controlplane.compute.host.binaries import postgres_bin, postgres_version
from controlplane.compute.host.filesystem import lock_branches, remove_tree, sync_tree
from controlplane.compute.settings.configuration import ExtensionPaths

# The first major version that has `extension_control_path`.
CONTROL_PATH_SINCE = 18
PRELOADED = "pg_stat_statements"
# Grants that the owner's role needs and that the extension's own script gives to superusers alone.
# These must be static statements: a query would run as a superuser, in the owner's schema.
OFFERED: dict[str, tuple[str, ...]] = {
    "amcheck": (
        "GRANT EXECUTE ON FUNCTION bt_index_check(regclass) TO {group}",
        "GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean) TO {group}",
        "GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean, boolean) TO {group}",
    ),
    "autoinc": (),
    "bloom": (),
    "dict_xsyn": (),
    "earthdistance": (),
    "insert_username": (),
    "intagg": (),
    "moddatetime": (),
    "pg_buffercache": (),
    "pg_freespacemap": (),
    "pg_prewarm": (),
    "pg_stat_statements": (
        "GRANT EXECUTE ON FUNCTION pg_stat_statements_reset(oid, oid, bigint, boolean) TO {group}",
    ),
    "pg_visibility": (),
    "pgrowlocks": (),
    "pgstattuple": (),
    "vector": (),
}
# Extensions that connect to other servers, as the compute's account. They are offered only if each
# compute has its own account: a shared account could open the other computes' sockets.
REACHING_OUT: dict[str, tuple[str, ...]] = {
    "dblink": ("GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO {group}",),
    "postgres_fdw": ("GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO {group}",),
}


@functools.cache
def offered_extensions(major: int) -> ExtensionPaths:
    """The paths of the extensions that this host offers with Postgres of the major version; the
    first caller makes their files."""
    system = _system_directory(major)
    if system is None or major < CONTROL_PATH_SINCE:
        return ExtensionPaths()
    offered = OFFERED if shared_account() else OFFERED | REACHING_OUT
    present = {name: offered[name] for name in offered if (system / f"{name}.control").exists()}
    place = _make(system, present, version=postgres_version(major))
    libraries = postgres_bin(major).parent / "lib"
    has_library = any(
        (place / f"{PRELOADED}.so").exists() for place in (libraries, libraries / "postgresql")
    )
    return ExtensionPaths(
        control_path=f"{place}:$system",
        preloaded=PRELOADED if PRELOADED in present and has_library else "",
    )


def has_extension(name: str, major: int) -> bool:
    """Whether this host's Postgres of the major version has the extension. The name is one that a
    catalog holds, and so untrusted."""
    system = _system_directory(major)
    if system is None or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return False
    return (system / f"{name}.control").exists()


def _make(system: Path, offered: dict[str, tuple[str, ...]], *, version: str) -> Path:
    """Make the directory with the copies. Its name depends on the version and the content."""
    content = repr(sorted(offered.items())) + GROUP
    name = f"{version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    place: Path = settings.STATE_DIR / "extensions" / name
    if place.exists():
        return place
    with lock_branches("extensions"):
        if place.exists():
            return place
        place.parent.mkdir(mode=0o755, exist_ok=True)
        staging = place.with_name(f".{name}")
        remove_tree(staging)
        # Postgres looks for control files below a directory of this name.
        (staging / "extension").mkdir(parents=True)
        for extension, grants in offered.items():
            _copy(system, staging / "extension", extension, grants)
        for path in (place.parent, staging, *staging.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        sync_tree(staging)
        staging.rename(place)
    return place


def _copy(system: Path, target: Path, extension: str, grants: tuple[str, ...]) -> None:
    """Copy the extension's files, mark it as trusted and append the grants to its last script."""
    control = (system / f"{extension}.control").read_text()
    version = re.search(r"^default_version\s*=\s*'([^']+)'", control, re.MULTILINE)
    (target / f"{extension}.control").write_text(f"{control.rstrip()}\ntrusted = true\n")
    for script in system.glob(f"{extension}--*.sql"):
        shutil.copyfile(script, target / script.name)
        if version and script.stem.endswith(f"--{version[1]}"):
            with (target / script.name).open("a") as file:
                file.writelines(f"\n{grant.format(group=GROUP)};\n" for grant in grants)


def _system_directory(major: int) -> Path | None:
    """The directory of Postgres's own control files."""
    root = postgres_bin(major).parent
    for share in (
        root / "share",
        root / "share" / "postgresql",
        Path(f"/usr/share/postgresql/{major}"),
    ):
        if os.path.exists(share / "extension" / "plpgsql.control"):
            return share / "extension"
    return None
