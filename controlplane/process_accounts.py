"""The accounts that `up` runs Perch's processes under if it runs as root, and the launcher that
starts a process under its account.

The table `KINDS` says for each kind of process what it may do. `running.process_setup` makes the
accounts and gives them their files. Only the standard library is imported here: the launcher runs
before each process.

    python -m controlplane.process_accounts KIND COMMAND...
"""

import ctypes
import functools
import grp
import hashlib
import hmac
import os
import pwd
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# "off" to run everything as root. `up` decides, and tells its processes by the same variable.
VARIABLE = "PERCH_PROCESS_ACCOUNTS"
# The group that may connect to the metadata's socket; it is that of the account of the metadata.
MAY_READ_METADATA = "perch"
# The group that may read and write the processes' figures, and the one that may connect to
# computes. They are the groups of these processes' own accounts.
MAY_KEEP_FIGURES, MAY_CONNECT = "perch-metrics", "perch-proxy"

# linux/capability.h
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "NET_ADMIN": 12,
    "SYS_PTRACE": 19,
}
_LISTENS = {"NET_BIND_SERVICE": "a port below 1024"}
_OF_HOST = {
    "CHOWN": "gives branches to their account numbers",
    "DAC_OVERRIDE": "reads and removes what belongs to account numbers and to root",
    "FOWNER": "sets the permissions of computes' socket directories",
    "KILL": "signals computes and poolers",
    "SETGID": "starts programs under account numbers",
    "SETUID": "starts programs under account numbers",
    "SYS_PTRACE": "proves which program and directory a process of an account number has",
}


@dataclass(frozen=True)
class Kind:
    """What a kind of process may do. `capabilities` has the reason for each."""

    account: str
    groups: tuple[str, ...]
    capabilities: Mapping[str, str]
    # The names, or their beginnings, of variables that the process does not get.
    without: tuple[str, ...] = ()
    has_secret_key: bool = False


_SHARED = (MAY_READ_METADATA, MAY_KEEP_FIGURES)
# The credentials of the object store of the history.
_STORE = ("PERCH_HISTORY_KEY", "AWS_", "GOOGLE_", "AZURE_")
KINDS = {
    "web": Kind("perch-web", (), _LISTENS, ("DATABASE_URL", *_STORE), has_secret_key=True),
    "api": Kind("perch-api", _SHARED, _LISTENS, _STORE, has_secret_key=True),
    "metrics": Kind("perch-metrics", (MAY_READ_METADATA,), _LISTENS, ("PERCH_SECRET_KEY", *_STORE)),
    "proxy": Kind("perch-proxy", _SHARED, _LISTENS, ("PERCH_SECRET_KEY", *_STORE)),
    "worker": Kind(
        "perch-worker",
        _SHARED,
        {**_OF_HOST, "NET_ADMIN": "loads the rules about what computes may connect to"},
        has_secret_key=True,
    ),
    # Does for the proxy what needs rights on this host: `proxy.directory.host_calls`.
    "host": Kind("perch-worker", _SHARED, _OF_HOST),
}

# linux/prctl.h and linux/capability.h
_KEEP_CAPABILITIES, _DROP_BOUND, _NO_NEW_PRIVILEGES, _AMBIENT = 8, 24, 38, 47
_RAISE, _CLEAR_ALL = 2, 4
_VERSION = 0x20080522
_SET_NAME = 15
# The kernel's name of the proxy's processes that go on when its main process ends. Programs that
# are executed get another name.
SERVES_UNTIL_REPLACED = "perch-proxy"
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def serve_until_replaced() -> None:
    """Give this process, and those that it forks, the name by which `up` tells a proxy that serves
    clients until the next one takes over from a main process, which it ends."""
    name = ctypes.create_string_buffer(SERVES_UNTIL_REPLACED.encode())
    _prctl(_SET_NAME, ctypes.addressof(name))


def in_use() -> bool:
    """True if Perch's processes on this host run under accounts of their own, as `up` found."""
    return os.environ.get(VARIABLE) == "on"


def keys_of(state_dir: Path, kind: str) -> Path:
    """The directory with the keys of a kind of process. Only its account may enter it."""
    return state_dir / "keys" / kind


def console_key(secret: str) -> str:
    """The console's secret key, if it has an account of its own."""
    return hmac.new(secret.encode(), b"perch console", hashlib.sha256).hexdigest()


def console_dir(state_dir: Path) -> Path:
    """The console's state directory. Under an account of its own it has another one: the console
    refuses a directory of another account, also if a later `up` runs it as root again."""
    return state_dir / ("web" if keys_of(state_dir, "web").is_dir() else "console")


@functools.cache
def acts_as_root() -> bool:
    """True if this process manages the accounts of computes: as root, or as the worker's account
    with its capabilities."""
    return os.geteuid() == 0 or "SETUID" in _effective()


def become(kind: str) -> None:
    """Give this process the account, groups and capabilities of the kind, for good. Programs that
    it executes keep the capabilities. The caller is root, and has no threads.

    Raises OSError, KeyError if an account does not exist.
    """
    chosen = KINDS[kind]
    account = pwd.getpwnam(chosen.account)
    groups = [grp.getgrnam(name).gr_gid for name in chosen.groups]
    # Containers lack some.
    kept = sum(1 << CAPABILITIES[name] for name in _effective() & chosen.capabilities.keys())
    for number in range(64):
        if not kept >> number & 1:
            # Without CAP_SETPCAP this fails. NO_NEW_PRIVILEGES keeps the others away as well.
            _libc.prctl(_DROP_BOUND, number, 0, 0, 0)
    # The kernel does not apply this limit to root, so it was not chosen for these processes.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NPROC, (resource.RLIM_INFINITY,) * 2)
    # With its own: `manage_files_as_root` changes the group of new files, and for a process without
    # its group the kernel would take the next program for one that changes the group (setgid), and
    # pass no capabilities to it.
    os.setgroups([account.pw_gid, *groups])
    os.setresgid(*[account.pw_gid] * 3)
    _prctl(_KEEP_CAPABILITIES, 1)
    os.setresuid(*[account.pw_uid] * 3)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    if _libc.capset(header, (ctypes.c_uint32 * 6)(*[low] * 3, *[high] * 3)):
        raise OSError(ctypes.get_errno(), "capabilities")
    _raise_ambient()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    acts_as_root.cache_clear()


def manage_files_as_root() -> None:
    """Keep this process's capabilities from the programs that it executes, and let root own the
    files that it makes, as `up` and the commands of root do. The caller has no threads yet.

    Does nothing without capabilities.
    """
    if os.geteuid() != 0 and acts_as_root():
        _prctl(_AMBIENT, _CLEAR_ALL)
        # Of this thread, and of all that it starts. Executed programs do not keep these.
        _libc.setfsgid(0)
        _libc.setfsuid(0)


@contextmanager
def passing_capabilities() -> Iterator[None]:
    """Pass this process's capabilities to a program that this thread executes meanwhile. As root,
    and without capabilities, this changes nothing."""
    if os.geteuid() == 0 or not acts_as_root():
        yield
        return
    _raise_ambient()
    try:
        yield
    finally:
        _prctl(_AMBIENT, _CLEAR_ALL)


def environment_of(kind: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process of the kind, made from that of `up`."""
    chosen = KINDS[kind]
    found = {k: v for k, v in environment.items() if not k.startswith(chosen.without or ("\0",))}
    # libpq looks for files in it, and fails if it may not.
    found["HOME"] = "/nonexistent"
    state_dir = Path(environment["PERCH_STATE_DIR"])
    if chosen.has_secret_key:
        keys = keys_of(state_dir, kind)
        found["PERCH_SECRET_KEY_FILE"] = str(keys / "secret-key")
        found["PERCH_SECRET_KEY_FALLBACKS_FILE"] = str(keys / "secret-key-fallbacks")
    if kind == "web":
        found["PERCH_CONSOLE_STATE_DIR"] = str(console_dir(state_dir))
    return found


def launch(kind: str, command: list[str]) -> None:
    """Execute the command as a process of the kind. Raises OSError, KeyError."""
    # The proxy begins as root, and reads what it needs before it becomes its account.
    if kind != "proxy":
        environment = environment_of(kind, os.environ)
        become(kind)
        os.execvpe(command[0], command, environment)  # noqa: S606
    os.execvp(command[0], command)  # noqa: S606


def _raise_ambient() -> None:
    for name in _effective():
        if name in CAPABILITIES:
            _prctl(_AMBIENT, _RAISE, CAPABILITIES[name])


def _effective() -> frozenset[str]:
    """The effective capabilities of this thread, of those in CAPABILITIES. Not read from /proc,
    which a confined thread cannot open."""
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget((ctypes.c_uint32 * 2)(_VERSION, 0), sets):
        raise OSError(ctypes.get_errno(), "capabilities")
    bits = sets[0] | sets[3] << 32
    return frozenset(name for name, number in CAPABILITIES.items() if bits >> number & 1)


def _prctl(option: int, *arguments: int) -> None:
    if _libc.prctl(option, *arguments, *[0] * (4 - len(arguments))):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    try:
        launch(sys.argv[1], sys.argv[2:])
    except PermissionError as error:
        sys.exit(f"other accounts cannot run {os.path.realpath(error.filename or sys.argv[2])}")
    except (OSError, KeyError) as error:
        sys.exit(f"cannot run under the account of {sys.argv[1]}: {error}")
