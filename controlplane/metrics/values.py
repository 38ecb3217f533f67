"""The values of a process's figures, for prometheus-client: in memory, and from `begin` on also in
files, from which `manage.py metrics` reads those of all processes of the host.

If processes run under accounts of their own, the directory's group is that of all of them, and so
is that of the files in it. Whoever takes over one of them can put links and other files there. So
no link is followed, a file is read up to MAX_FILE_BYTES, one that is not as these processes write
it is left out, and only its own account can write to a file: one that becomes shorter would kill
the process that has it mapped.

A process takes the lowest free **slot** of its name, such as `api-0`, and holds the slot's lock for
as long as it lives. Its successor takes the slot, and counts on from the values in its files. So
counters never decrease, there are never more files than processes at one time, and reused process
ids do no harm. Gauges count for living processes only. The kernel releases the lock of a process
that died, which shows that its gauges are out of date.

The files' blocks are allocated when they are made. Writing to a mapped file for which a full disk
has no block would kill the process.
"""

import errno
import fcntl
import json
import logging
import os
import re
import stat
import struct
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import Metric, values
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

log = logging.getLogger(__name__)

# prometheus-client does not declare their types.
_accumulate: Any = MultiProcessCollector._accumulate_metrics
_MappedFile: Any = MmapedDict

# Bytes of each kind's file. The API needs the most, for its histograms by route.
FILE_BYTES = {
    "counter": 1 << 19,
    "histogram": 1 << 20,
    "summary": 1 << 16,
    "gauge_livesum": 1 << 16,
    "gauge_livemin": 1 << 12,
}
# Enough for a file that has grown, for labels of many values.
MAX_FILE_BYTES = 1 << 23
MAX_SLOTS = 1000
# The name of a sample or of a label.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_lock = threading.Lock()


class Value:
    """A single value; the interface is that of `prometheus_client.values`."""

    _multiprocess = True

    def __init__(
        self,
        typ: str,
        metric_name: str,
        name: str,
        labelnames: list[str],
        labelvalues: list[str],
        help_text: str,
        multiprocess_mode: str = "",
        **_: Any,
    ) -> None:
        self._kind = f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ
        self._key = mmap_key(metric_name, name, labelnames, labelvalues, help_text)
        self._value = 0.0
        self._file: Any = None
        with _lock:
            if _slot is None:
                _in_memory.append(self)
            else:
                self.write_to(_slot)

    def write_to(self, slot: "_Slot") -> None:
        """Continue the value that the slot's previous holder left. The caller holds the lock."""
        self._file = slot.files[self._kind]
        self._value += self._file.read_value(self._key)[0]
        self._file.write_value(self._key, self._value, 0.0)

    def inc(self, amount: float) -> None:
        with _lock:
            self._value += amount
            if self._file is not None:
                self._file.write_value(self._key, self._value, 0.0)

    def set(self, value: float, timestamp: float | None = None) -> None:
        with _lock:
            self._value = value
            if self._file is not None:
                self._file.write_value(self._key, value, timestamp or 0.0)

    def get_exemplar(self) -> None:
        """None: exemplars are not kept."""

    def get(self) -> float:
        return self._value


values.ValueClass = Value
# The values that were made before `begin`.
_in_memory: list[Value] = []
_slot: "_Slot | None" = None


class _Slot:
    """Raises OSError if the directory cannot be written, or the disk is full."""

    def __init__(self, directory: Path, process: str, known: Collection[str]) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The descriptor stays open, and the slot locked, until this process ends.
        self.name, self.descriptor = _take_slot(directory, process)
        self.files = {
            kind: _renewed(directory / f"{kind}_{self.name}.db", size, known)
            for kind, size in FILE_BYTES.items()
        }


def begin(directory: Path, process: str, known: Collection[str]) -> None:
    """Write this process's values to a slot of `process` in `directory` from now on. Values of
    figures that are not `known`, as of an earlier release, are forgotten.

    Must be called after the last fork. If the files cannot be made, the values stay in memory, and
    the process works without its figures.
    """
    global _slot
    try:
        slot = _Slot(directory, process, known)
    except OSError as error:
        log.warning("figures not kept", extra={"directory": str(directory), "error": str(error)})
        return
    with _lock:
        _slot = slot
        for value in _in_memory:
            value.write_to(slot)
        _in_memory.clear()


def collect(directory: Path, known: Collection[str]) -> Iterable[Metric]:
    """The `known` figures of all processes that keep them in `directory`, added up."""
    metrics: dict[str, Any] = {}
    # Processes have the same keys.
    parsed: dict[str, Any] = {}
    for path in sorted(directory.glob("*.db")):
        if not _is_current(path):
            continue
        try:
            _add(metrics, path, known, parsed)
        except (FileNotFoundError, PermissionError):
            # A process that was started by hand may run under another account.
            pass
        except Exception as error:
            log.warning("figures left out", extra={"file": str(path), "error": repr(error)})
    found: Iterable[Metric] = _accumulate(metrics, accumulate=True)
    return found


def _add(
    metrics: dict[str, Any], path: Path, known: Collection[str], parsed: dict[str, Any]
) -> None:
    """Add the file's values to `metrics`, all or none. Raises any exception if one is not as these
    processes write it."""
    kind = path.stem.rpartition("_")[0]
    typ, _, mode = kind.partition("_")
    if kind not in FILE_BYTES:
        raise ValueError("of no kind")
    samples = []
    for key, value in _values(path):
        if key not in parsed:
            parsed[key] = _parsed(key)
        metric, *_ = parsed[key]
        if metric not in known:
            continue
        if metric in metrics and metrics[metric].type != typ:
            raise ValueError("of another kind")
        samples.append((*parsed[key], value))
    for metric, about, name, labels, value in samples:
        if metric not in metrics:
            metrics[metric] = Metric(metric, about, typ)
            metrics[metric]._multiprocess_mode = mode
        metrics[metric].add_sample(name, labels, value)


def _parsed(key: str) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    metric, name, labels, about = json.loads(key)
    if not name.startswith(metric) or not all(map(_NAME.fullmatch, (name, *labels))):
        raise ValueError("not a name")
    float(labels.get("le", 0))
    pairs = ((label, str(text)) for label, text in sorted(labels.items()))
    return metric, str(about), name, tuple(pairs)


def _values(path: Path) -> list[tuple[str, float]]:
    """The keys and values in a file of `MmapedDict`. Raises OSError, ValueError, struct.error."""
    with open(_opened(path, os.O_RDONLY), "rb") as file:
        content = file.read(MAX_FILE_BYTES)
    (used,) = struct.unpack_from("i", content)
    found, at = [], 8
    while at < used:
        (length,) = struct.unpack_from("i", content, at)
        key = content[at + 4 : at + 4 + max(length, 0)]
        # Padded, by one space at least.
        at += 4 + length + 8 - (length + 4) % 8
        value, _ = struct.unpack_from("dd", content, at)
        at += 16
        if len(key) != length:
            raise ValueError("too short")
        found.append((key.decode(), value))
    return found


def _take_slot(directory: Path, process: str) -> tuple[str, int]:
    for number in range(MAX_SLOTS):
        name = f"{process}-{number}"
        descriptor = _opened(_lock_file(directory, name), os.O_RDONLY | os.O_CREAT)
        _share(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return name, descriptor
    raise OSError(f"{MAX_SLOTS} processes are named {process}")


def _renewed(path: Path, size: int, known: Collection[str]) -> Any:
    """Replace the slot's file by a new one with the counts of known figures. Return the new
    file."""
    kept: list[tuple[str, float]] = []
    if not path.name.startswith("gauge_live"):
        try:
            kept = [
                (key, value)
                for key, value in _values(path)
                if any(key.startswith(f'["{name}"') for name in known)
            ]
        except FileNotFoundError:
            pass
        except Exception as error:
            # The slot's last holder was killed while it wrote, or the machine lost power.
            log.warning("figures lost", extra={"file": str(path), "error": repr(error)})
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = _opened(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        _share(descriptor)
        os.posix_fallocate(descriptor, 0, size)
        file = _MappedFile(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    for key, value in kept:
        file.write_value(key, value, 0.0)
    new.rename(path)
    return file


def _opened(path: Path, flags: int) -> int:
    """Open a regular file that has no other name. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file, or one with other names", str(path))
    return descriptor


def _share(descriptor: int) -> None:
    """Let the group of the directory read the file."""
    with suppress(PermissionError):  # another account made it
        os.fchmod(descriptor, 0o640)


def _is_current(path: Path) -> bool:
    """Return False if the file has gauges of a process that has ended."""
    kind, _, slot = path.stem.rpartition("_")
    return not kind.startswith("gauge_live") or _is_locked(_lock_file(path.parent, slot))


def _is_locked(lock_file: Path) -> bool:
    with suppress(OSError):
        descriptor = _opened(lock_file, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _lock_file(directory: Path, slot: str) -> Path:
    return directory / f"{slot}.lock"
