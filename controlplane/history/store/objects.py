"""Puts, gets, lists and deletes the objects of the store, packed. No object is ever overwritten.

A store may answer that it has stored what it has not. So an object counts as stored only once the
store has told its size, and everything that is read is checked (`packing`).
"""

import hashlib
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from django.conf import settings
from obstore.exceptions import BaseError
from obstore.store import from_url

from controlplane.encryption import history_keys
from controlplane.features import CannotServe
from controlplane.history.store.packing import Damaged, Keyring, WrongKey, pack, unpack

# Callers try again, with growing pauses, so that the state of the copy is known meanwhile.
RETRIES = {"max_retries": 1, "retry_timeout": timedelta(seconds=30)}
BOUNDS = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=120)}
# Bytes of each part of a large object, how many are sent at once, and how large an object is that
# is sent as a whole.
PART_BYTES, MAX_PARALLEL, MIN_MULTIPART_BYTES = 8 << 20, 2, 17 << 20
# How many objects a folder may have: the log of a busy host for years, and lists, signs or keys. A
# store may list any number, and pages without an end.
MAX_OBJECTS, MAX_NEWEST = 2_000_000, 1000
# How often the newest object of a folder is looked for.
MAX_ATTEMPTS = 5
# Bytes that are read at once, and between two waits for the bandwidth.
READ_CHUNK_BYTES = 1 << 20


class StoreFails(Exception):
    """The store did not do what it was told; the message says what it answered."""


class NotStored(StoreFails):
    """The store answered that it has stored an object, but does not have it, or only a part."""


class Missing(Damaged):
    """An object that was listed is not there; the message names it."""


class StoreMisnamed(CannotServe):
    """PERCH_HISTORY_STORE names no store; the message says why."""


class Bandwidth:
    """Bounds how many bytes a second all threads together send. None is no bound."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, size: int) -> None:
        """Return when `size` more bytes may be sent."""
        if not self._rate:
            return
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + size / self._rate
        time.sleep(max(0.0, begin - time.monotonic()))


class Store:
    """The objects below the prefix that the URL names. Every method raises StoreFails."""

    def __init__(self, url: str, keyring: Keyring, bandwidth: Bandwidth) -> None:
        self._keyring = keyring
        self._knows_former_keys = False
        self._bandwidth = bandwidth
        # Given options replace those that obstore reads from the environment.
        of_client = {**BOUNDS, "allow_http": settings.HISTORY_STORE_ALLOW_HTTP}
        options: dict[str, Any] = {"retry_config": RETRIES, "client_options": of_client}
        try:
            if url.startswith("file:"):
                options = {}
                # Names and sizes of objects are not for other accounts of the host.
                place = Path(unquote(urlsplit(url).path))
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._objects = from_url(url, **options)
        except (BaseError, OSError, ValueError) as error:
            raise StoreMisnamed(f"PERCH_HISTORY_STORE: {_error_text(error)}") from error

    def put(self, name: str, content: bytes | Iterable[bytes]) -> None:
        """Store the object under the new name. Raises what `content` raises, too."""
        is_whole = isinstance(content, bytes) and len(content) < MIN_MULTIPART_BYTES
        parts = [content] if isinstance(content, bytes) else content
        size = 0

        def sent() -> Iterator[bytes]:
            nonlocal size
            for part in pack(name, parts, self._keyring):
                self._bandwidth.wait_for(len(part))
                size += len(part)
                yield part

        with _translate_errors(name):
            if is_whole:
                obstore.put(self._objects, name, b"".join(sent()), use_multipart=False)
            else:
                obstore.put(
                    self._objects, name, sent(), chunk_size=PART_BYTES, max_concurrency=MAX_PARALLEL
                )
        found = self.size_of(name)
        if found != size:
            # Otherwise it would count as what it is not.
            with suppress(StoreFails):
                self.delete([name])
            raise NotStored(
                f"the store answered that it has {name}, and has "
                + ("no such object" if found is None else f"{found} of its {size} bytes")
            )

    def size_of(self, name: str) -> int | None:
        """The object's size in the store; None if it is not there."""
        with _translate_errors(name):
            try:
                return int(obstore.head(self._objects, name)["size"])
            except FileNotFoundError:
                return None

    def get(self, name: str) -> Iterator[bytes]:
        """The object's content, in parts. Only at the end it is known to be complete. Raises
        Damaged, WrongKey."""
        try:
            yield from self._get(name)
        except WrongKey:
            # The key is checked before the first part, so nothing was yielded yet.
            if self._knows_former_keys:
                raise
            self._knows_former_keys = True
            for keys in self._former_keys().values():
                self._keyring.learn(keys)
            yield from self._get(name)

    def keep_former_keys(self, keys: Iterable[str]) -> int:
        """Keep the keys of objects that were written before the key was replaced. They are
        encrypted with the present key, so that whoever has that one can read all objects. Returns
        how many are kept."""
        earlier = self._former_keys()
        wanted = set(keys).union(*earlier.values())
        if wanted:
            name = f"keys/{settings.REGION}/{random_name()}"
            self.put(name, json.dumps(sorted(wanted)).encode())
            self.delete(earlier)
        return len(wanted)

    def _former_keys(self) -> dict[str, list[str]]:
        """The kept keys, by the object that holds them."""
        found = {}
        for name in self.names(f"keys/{settings.REGION}", MAX_NEWEST):
            # Written with a key that is not known here or without one, or deleted meanwhile.
            with suppress(WrongKey, Damaged):
                found[name] = json.loads(b"".join(self._get(name)))
        return found

    def _get(self, name: str) -> Iterator[bytes]:
        with _translate_errors(name):
            try:
                found = obstore.get(self._objects, name)
            except FileNotFoundError:
                raise Missing(f"{name} is missing") from None
            packed = (bytes(part) for part in found.stream(min_chunk_size=READ_CHUNK_BYTES))
            try:
                yield from unpack(name, packed, self._keyring)
            except Damaged as error:
                raise Damaged(f"{name} is damaged: {error}") from error

    def is_whole(self, name: str) -> bool:
        """Read the object: True if it was written under this name, with a key that is known."""
        try:
            deque(self.get(name), maxlen=0)
        except (Damaged, WrongKey):
            return False
        return True

    def newest(
        self, folder: str, is_wanted: Callable[[bytes], bool] = lambda _: True
    ) -> tuple[list[str], bytes] | None:
        """The names of all objects in the folder, and the content of the last by name that can be
        read: without the key, others may have added some. One that is wanted comes before those
        that are not. It must be small. None if there are none. The host that writes them deletes
        the earlier ones, so a missing one is looked for again. Raises Damaged, WrongKey if none can
        be read."""
        errors: list[Damaged | WrongKey] = []
        for _ in range(MAX_ATTEMPTS):
            errors.clear()
            names, found = list(self.names(folder, MAX_NEWEST)), None
            for name in reversed(names):
                try:
                    content = b"".join(self.get(name))
                except (Damaged, WrongKey) as error:
                    errors.append(error)
                    continue
                if is_wanted(content):
                    return names, content
                found = found or content
            if found is not None:
                return names, found
            if not any(isinstance(error, Missing) for error in errors):
                break
        if errors:
            raise errors[0]
        return None

    def names(self, prefix: str, most: int = MAX_OBJECTS) -> dict[str, int]:
        """The names of all objects below the prefix, a folder, in their order, with their sizes.
        Raises StoreFails if there are more than `most`."""
        with _translate_errors(prefix):
            listed = (one for part in obstore.list(self._objects, prefix) for one in part)
            found = [(str(one["path"]), int(one["size"])) for one in islice(listed, most + 1)]
        if len(found) > most:
            raise StoreFails(f"{prefix}: it lists more than {most:,} objects")
        return dict(sorted(found))

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly below the folder `prefix`."""
        with _translate_errors(prefix):
            found = obstore.list_with_delimiter(self._objects, prefix)["common_prefixes"]
        return sorted(str(path).rsplit("/", 1)[-1] for path in found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete the objects; no error if some are not there."""
        doomed = list(names)
        with _translate_errors("deleting objects"):
            try:
                obstore.delete(self._objects, doomed)
            except FileNotFoundError:
                # Only a folder as a store answers this. It has not deleted the rest.
                for name in doomed:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._objects, name)


def configured_store() -> Store | None:
    """The store that the settings name; None without one. Raises StoreMisnamed."""
    if not settings.HISTORY_STORE:
        return None
    present, *former = [settings.HISTORY_KEY] if settings.HISTORY_KEY else history_keys()
    # One for each region: it need not be secret, and the key is derived once.
    salt = hashlib.sha256(f"perch history {settings.REGION}".encode()).digest()[:16]
    bandwidth = Bandwidth(settings.HISTORY_STORE_BANDWIDTH)
    return Store(settings.HISTORY_STORE, Keyring(present, salt, former), bandwidth)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Turn the errors of the store into StoreFails."""
    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError) as error:
        raise StoreFails(f"{name}: {_error_text(error)}") from error


def _error_text(error: BaseException) -> str:
    """The error without the details that obstore adds for its own developers."""
    return str(error).partition("\n")[0].strip()


def random_name() -> str:
    """A part of a name, by which no two objects have the same name."""
    return secrets.token_hex(8)
