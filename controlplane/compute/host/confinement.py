"""Confines programs by the kernel: which files they may open, which programs execute, and whom they
may reach (`start_confined`), or only what they may take or leave of the host (`start_restricted`).

Landlock rules the files, programs, TCP, abstract sockets and signals, and keeps them from reading
other processes' memory; seccomp rules which sockets they may make, and that they make no setuid or
setgid files. Neither needs rights of root.
Both hold for the thread that asks for them and for all that it starts, for good. So a program is
started by a thread that ends at once.

The interfaces are those of linux/landlock.h, linux/seccomp.h and linux/filter.h.
"""

import ctypes
import logging
import os
import platform
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHARACTER, _MAKE_BLOCK, _TRUNCATE, _DEVICE_CONTROL = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
# The first version of Landlock that lets files be linked into another directory.
_LINKS, _TRUNCATES, _TCP, _CONTROLS, _SCOPES = 2, 3, 4, 5, 6
_BIND, _CONNECT = 1, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _PATH_BENEATH, _ASK_VERSION = 444, 445, 446, 1, 1
_NO_NEW_PRIVILEGES, _ASK_SECCOMP, _SECCOMP, _FILTER = 38, 21, 22, 2
# By the machine: how seccomp names it, the numbers of `socket`, `clone` and `prctl`, and those of
# calls that are refused: ptrace, process_vm_readv, process_vm_writev, io_uring_setup, whose rings
# could open sockets; semget, msgget and mq_open, as all of a host share what these may make;
# unshare, setns, bpf, perf_event_open, userfaultfd, add_key, request_key and keyctl, which lead to
# code of the kernel that Postgres does not need.
_CALLS = {
    "x86_64": (
        *(0xC000003E, 41, 56, 157),
        (101, 310, 311, 425, 64, 68, 240, 272, 308, 321, 298, 323, 248, 249, 250),
    ),
    "aarch64": (
        *(0xC00000B7, 198, 220, 167),
        (117, 270, 271, 425, 190, 186, 180, 97, 268, 280, 241, 282, 217, 218, 219),
    ),
}
# The calls that set the mode of a file, by the machine: their numbers, and which arguments are the
# mode and, for those that do not always make a file, the flags.
_SET_MODES: dict[str, tuple[tuple[int, int, int | None], ...]] = {
    "x86_64": (
        *((2, 2, 1), (257, 3, 2), (85, 1, None)),  # open, openat, creat
        *((90, 1, None), (91, 1, None), (268, 2, None)),  # chmod, fchmod, fchmodat
        *((83, 1, None), (258, 2, None)),  # mkdir, mkdirat
        *((133, 1, None), (259, 2, None)),  # mknod, mknodat
        (452, 2, None),  # fchmodat2
    ),
    "aarch64": (
        *((56, 3, 2), (52, 1, None), (53, 2, None)),  # openat, fchmod, fchmodat
        *((34, 2, None), (33, 2, None), (452, 2, None)),  # mkdirat, mknodat, fchmodat2
    ),
}
_SET_IDS = stat.S_ISUID | stat.S_ISGID
_CREATES = os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY
# The option of `prctl` by which a process chooses where its command line and its environment are.
_SET_MEMORY_MAP = 35
# A filter cannot read what clone3 and openat2 are asked for. Without them, programs use others.
_CLONE3, _OPENAT2, _NEW_USER_NAMESPACE = 435, 437, 0x10000000
_LOAD, _EQUALS, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
# The offsets in struct seccomp_data.
_NUMBER, _MACHINE, _ARGUMENTS, _ARGUMENT_SIZE = 0, 4, 16, 8
_FAMILY = _CLONE_FLAGS = _OPTION = _ARGUMENTS
_PROTOCOL = _ARGUMENTS + 2 * _ARGUMENT_SIZE
# Numbers from here on are of x86_64's other interface, x32.
_FOREIGN = 0x40000000
# Landlock rules these protocols alone. Others, such as MPTCP, would take TCP ports as well.
_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 without one that is of use here."""
    found = _libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return int(found) if found >= _LINKS else 0


def can_deny_ports() -> bool:
    """True if `start_restricted` denies ports: on Linux 6.7 or newer with Landlock."""
    return landlock_version() >= _TCP and can_refuse_calls()


def can_refuse_calls() -> bool:
    """True on a machine whose system calls are known here, if its kernel has seccomp."""
    return platform.machine() in _CALLS and _libc.prctl(_ASK_SECCOMP, 0, 0, 0, 0) >= 0


def start_confined(
    start: Callable[[], Result],
    *,
    read: Iterable[Path],
    written: Iterable[Path],
    executed: Iterable[Path],
) -> Result:
    """Call `start` in a thread that is confined, as everything that it starts. It may open what is
    below these paths; those that do not exist are left out. It must not import anything. Raises
    OSError, and what `start` raises."""

    def confined() -> Result:
        _restrict_calls((socket.AF_UNIX,))
        _restrict_paths(read, written, executed)
        return start()

    return _by_thread(confined)


def start_restricted(start: Callable[[], Result]) -> Result:
    """Call `start` in a thread that can bind no TCP port, and make no setuid or setgid file, as
    everything that it starts, as far as the kernel can refuse these. So a compute that was taken
    over neither takes the port of a service that restarts, nor leaves a program by which another
    user of the host becomes its account. Raises OSError, and what `start` raises."""

    def confined() -> Result:
        _restrict_calls((socket.AF_UNIX, socket.AF_NETLINK), (socket.AF_INET, socket.AF_INET6))
        if can_deny_ports():
            with _restricted(0, _BIND):
                pass
        return start()

    return _by_thread(confined) if can_refuse_calls() else start()


def _by_thread(confined: Callable[[], Result]) -> Result:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(confined).result()


@contextmanager
def _restricted(*handled: int) -> Iterator[int]:
    """Refuse this thread what is handled: of files, of TCP, and of scopes. The caller may add rules
    to the ruleset before, whose descriptor this yields."""
    attributes = struct.pack(f"{len(handled)}Q", *handled)
    rules = _check(_libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        yield rules
        _check(_libc.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _restrict_paths(
    read: Iterable[Path], written: Iterable[Path], executed: Iterable[Path]
) -> None:
    if not (version := landlock_version()):
        log.warning("this kernel has no Landlock: pg_upgrade has all rights of its account")
        return
    bits = 14 + (version >= _TRUNCATES) + (version >= _CONTROLS)
    handled = (1 << bits) - 1
    writes = handled & ~(_EXECUTE | _MAKE_CHARACTER | _MAKE_BLOCK)
    fields = [handled]
    if version >= _TCP:
        fields.append(_BIND | _CONNECT)
    if version >= _SCOPES:
        fields.append(0b11)  # abstract sockets and signals
    with _restricted(*fields) as rules:
        for allowed, places in (
            (_READ_FILE | _READ_DIR, read),
            (writes, written),
            (_EXECUTE | _READ_FILE, executed),
        ):
            for place in filter(Path.exists, places):
                _allow(rules, place, allowed)


def _allow(rules: int, place: Path, allowed: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not place.is_dir():
            allowed &= _OF_FILES
        rule = struct.pack("=Qi", allowed, descriptor)
        _check(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)


def _restrict_calls(families: Iterable[int], internet: Iterable[int] = ()) -> None:
    """Allow sockets of these families, and of `internet` only those with `_PROTOCOLS`. Nothing that
    this thread executes gains privileges."""
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    machine = platform.machine()
    if not can_refuse_calls():
        log.warning("no system calls are refused to pg_upgrade on %s", machine)
        return
    name, of_socket, of_clone, of_prctl, refused = _CALLS[machine]
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    # Each line: code, how many lines to skip if it is so, and if not, and what to compare with.
    lines = [
        *((_LOAD, 0, 0, _MACHINE), (_EQUALS, 1, 0, name), refuse),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _FOREIGN), refuse),
        *(line for one in refused for line in ((_EQUALS, 0, 1, one), refuse)),
        *((_EQUALS, 0, 1, _CLONE3), (_RETURN, 0, 0, _NO_SUCH_CALL)),
        *((_EQUALS, 0, 1, _OPENAT2), (_RETURN, 0, 0, _NO_SUCH_CALL)),
        *(line for call in _SET_MODES[machine] for line in _without_set_ids(*call)),
        *((_EQUALS, 0, 4, of_prctl), (_LOAD, 0, 0, _OPTION)),
        *((_EQUALS, 0, 1, _SET_MEMORY_MAP), refuse, allow),
        *((_EQUALS, 0, 4, of_clone), (_LOAD, 0, 0, _CLONE_FLAGS)),
        *((_HAS_BIT, 0, 1, _NEW_USER_NAMESPACE), refuse, allow),
        *((_EQUALS, 1, 0, of_socket), allow),
    ]
    for family in internet:
        lines += [(_LOAD, 0, 0, _FAMILY), (_EQUALS, 0, 2 * len(_PROTOCOLS) + 1, family)]
        lines.append((_LOAD, 0, 0, _PROTOCOL))
        lines += [line for one in _PROTOCOLS for line in ((_EQUALS, 0, 1, one), allow)]
    lines.append((_LOAD, 0, 0, _FAMILY))
    lines += [line for one in families for line in ((_EQUALS, 0, 1, one), allow)]
    lines.append(refuse)
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    pointer = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program))
    _check(_libc.prctl(_SECCOMP, _FILTER, ctypes.c_char_p(pointer), 0, 0))


def _without_set_ids(number: int, mode: int, flags: int | None) -> list[tuple[int, int, int, int]]:
    """The lines that refuse this call if its mode is setuid or setgid, and else allow it."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)
    lines = [(_LOAD, 0, 0, _argument(mode)), (_HAS_BIT, 0, 1, _SET_IDS), refuse, allow]
    if flags is not None:
        # The argument is a mode only if the call may make a file.
        lines = [(_LOAD, 0, 0, _argument(flags)), (_HAS_BIT, 1, 0, _CREATES), allow, *lines]
    return [(_EQUALS, 0, len(lines), number), *lines]


def _argument(index: int) -> int:
    return _ARGUMENTS + index * _ARGUMENT_SIZE


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
