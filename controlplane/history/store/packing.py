"""The format of an object: a header, then frames, each of them compressed and encrypted.

The header has the format's version, what the key is derived from, and a value by which a wrong key
is recognized. A frame holds at most `BLOCK_BYTES` of content, compressed by Zstandard and encrypted
by AES-256-GCM with a key of the object's own. A frame's nonce is its number, so frames cannot be
left out, repeated or moved. The last frame is marked in its nonce and holds the length and the
SHA-256 of the content, so an object that was cut short is recognized. The object's name is
authenticated too: no object can be replaced by another one.

A directory is one object: a tar archive of its directories and regular files.
"""

import base64
import binascii
import hashlib
import hmac
import io
import os
import struct
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from django.conf import settings

from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.tree import entries_of

FORMAT = b"perch history 1\n"
# The format, the salt of the key, the check of the key, and the salt of the object's own key.
HEADER = struct.Struct("<16s16s16s32s")
LENGTH = struct.Struct("<I")
# The content's length and SHA-256.
TRAILER = struct.Struct("<Q32s")
# Bytes of content in a frame, and the most that a frame can take.
BLOCK_BYTES = 1 << 20
MAX_FRAME_BYTES = BLOCK_BYTES + (64 << 10)
COMPRESSION_LEVEL = 1
KEY_BYTES = 32
# Bytes read at once.
CHUNK_BYTES = 1 << 20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)


class Damaged(Exception):
    """The object is not what was written under its name; the message says how."""


class WrongKey(Exception):
    """The object was encrypted with another key."""


class Keyring:
    """Derives the keys of objects from the operator's secret: 32 bytes in base64, or a passphrase
    of any length. New objects get the `salt` (16 bytes). `former` are earlier secrets, whose
    objects can still be read."""

    def __init__(self, secret: str, salt: bytes, former: Iterable[str] = ()) -> None:
        self._secrets = [secret, *former]
        self._salt = salt
        self._known: dict[tuple[str, bytes], bytes] = {}

    def learn(self, former: Iterable[str]) -> None:
        """Read also what was encrypted with these secrets."""
        self._secrets += [one for one in former if one not in self._secrets]

    def header(self) -> tuple[bytes, AESGCM]:
        """The header of a new object, and its key."""
        of_object = os.urandom(32)
        key = self._key(self._secrets[0], self._salt)
        header = HEADER.pack(FORMAT, self._salt, _expand(key, b"check", 16), of_object)
        return header, _cipher(key, of_object)

    def cipher(self, header: bytes) -> AESGCM:
        """The key of the object with this header. Raises Damaged, WrongKey."""
        if len(header) < HEADER.size:
            raise Damaged("it is cut short")
        found, salt, check, of_object = HEADER.unpack(header)
        if found != FORMAT:
            raise Damaged("it is no object of this format")
        for secret in self._secrets:
            key = self._key(secret, salt)
            if hmac.compare_digest(check, _expand(key, b"check", 16)):
                return _cipher(key, of_object)
        raise WrongKey(
            "the key is not the one that the history was encrypted with: set "
            "PERCH_HISTORY_KEY, or without one PERCH_SECRET_KEY, to that of the host that "
            "wrote it"
        )

    def _key(self, secret: str, salt: bytes) -> bytes:
        """The key of all objects with this secret and salt. A passphrase takes some tenths of a
        second."""
        known = self._known.get((secret, salt))
        if known is None:
            if (exact := _exact_key(secret)) is not None:
                known = _expand(exact, b"perch history" + salt, KEY_BYTES)
            else:
                scrypt = Scrypt(salt=salt, length=KEY_BYTES, n=2**15, r=8, p=1)
                known = scrypt.derive(secret.encode())
            self._known[secret, salt] = known
        return known


def pack(name: str, content: Iterable[bytes], keyring: Keyring) -> Iterator[bytes]:
    """The object with this name and content, in parts that fit into memory."""
    header, cipher = keyring.header()
    yield header
    compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
    digest, length, number = hashlib.sha256(), 0, 0
    read = reader_of(content)
    while block := read(BLOCK_BYTES):
        digest.update(block)
        length += len(block)
        yield _seal(cipher, name, number, compress(block), is_last=False)
        number += 1
    end = TRAILER.pack(length, digest.digest())
    yield _seal(cipher, name, number, end, is_last=True)


def unpack(name: str, packed: Iterable[bytes], keyring: Keyring) -> Iterator[bytes]:
    """The content of an object, in parts that fit into memory. Each part is authentic; that the
    content is complete is known only at its end. Raises Damaged, WrongKey."""
    read = reader_of(packed)
    cipher = keyring.cipher(read(HEADER.size))
    decompress = zstandard.ZstdDecompressor().decompress
    digest, length, number = hashlib.sha256(), 0, 0
    while True:
        prefix = read(LENGTH.size)
        if len(prefix) < LENGTH.size:
            raise Damaged("it is cut short")
        (size,) = LENGTH.unpack(prefix)
        if size > MAX_FRAME_BYTES:
            raise Damaged("it has a frame that is too long")
        sealed = read(size)
        if len(sealed) < size:
            raise Damaged("it is cut short")
        opened, is_last = _open_frame(cipher, name, number, sealed)
        if is_last:
            break
        block = decompress(opened, max_output_size=BLOCK_BYTES)
        digest.update(block)
        length += len(block)
        number += 1
        yield block
    if read(1) or len(opened) != TRAILER.size:
        raise Damaged("it goes on after its end")
    if TRAILER.unpack(opened) != (length, digest.digest()):
        raise Damaged("its content has another length or checksum than was written")


def reader_of(parts: Iterable[bytes]) -> Callable[[int], bytes]:
    """Return a function that reads the given number of bytes from the parts; fewer only at the
    end."""
    source, buffer = iter(parts), bytearray()

    def read(size: int) -> bytes:
        while len(buffer) < size:
            part = next(source, None)
            if part is None:
                break
            buffer.extend(part)
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    return read


def _seal(cipher: AESGCM, name: str, number: int, data: bytes, *, is_last: bool) -> bytes:
    sealed = cipher.encrypt(_nonce(number, is_last), data, name.encode())
    return LENGTH.pack(len(sealed)) + sealed


def _open_frame(cipher: AESGCM, name: str, number: int, sealed: bytes) -> tuple[bytes, bool]:
    """The frame's data, and whether it is the last one. Raises Damaged."""
    for is_last in (False, True):
        try:
            return cipher.decrypt(_nonce(number, is_last), sealed, name.encode()), is_last
        except InvalidTag:
            continue
    raise Damaged("it is cut short, changed, or another object than its name says")


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _cipher(key: bytes, of_object: bytes) -> AESGCM:
    return AESGCM(_expand(key, b"object" + of_object, KEY_BYTES))


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


def _exact_key(secret: str) -> bytes | None:
    """The key that the secret is in base64; None if it is a passphrase."""
    try:
        key = base64.b64decode(secret, validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


class TreeChanged(Exception):
    """The directory changed while it was read."""


@contextmanager
def scratch_directory(name: str) -> Iterator[Path]:
    """An empty directory of this name in the state directory, which only Perch can read. It is
    removed at the end; one that a killed process has left is emptied first."""
    place = Path(settings.STATE_DIR) / name
    remove_tree(place)
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        remove_tree(place)


def tree_stream(directory: int, *, skip: Collection[str] = ()) -> Iterator[bytes]:
    """The tar archive of the open directory, in parts. `skip` names paths in it; a skipped
    directory is in the archive, but empty. Raises TreeChanged, TreeUntrusted, OSError."""
    for name, file in entries_of(directory, skip=skip, all_of=True):
        if file is None:
            yield _header(name, tarfile.DIRTYPE, 0)
        else:
            yield from _content(file, name)
    yield END


# Python 3.11 has the filter since 3.11.4; Debian 12 has 3.11.2.
FILTER: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The archive's members, which are directories and files within the target. Raises Damaged."""
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isdir() or member.isreg()):
            raise Damaged(f"it contains {member.name!r}, which no tree contains")
        yield member


def write_tree(parts: Iterable[bytes], target: Path) -> None:
    """Make the directory `target` from the parts of its archive. Raises Damaged, OSError, and what
    `parts` raises."""
    target.mkdir(mode=0o700, parents=True)
    try:
        with tarfile.open(fileobj=_Source(parts), mode="r|", bufsize=CHUNK_BYTES) as archive:
            archive.extractall(target, members=_plain_members(archive), **FILTER)  # noqa: S202
    except tarfile.TarError as error:
        raise Damaged(f"it is no archive: {error}") from error


def _content(file: int, name: str) -> Iterator[bytes]:
    size = left = os.fstat(file).st_size
    yield _header(name, tarfile.REGTYPE, size)
    while left:
        part = os.read(file, min(CHUNK_BYTES, left))
        if not part:
            raise TreeChanged(f"{name} became shorter")
        left -= len(part)
        yield part
    yield bytes(-size % BLOCK)


def _header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.mode = 0o700 if kind == tarfile.DIRTYPE else 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


class _Source(io.RawIOBase):
    """The parts as the file that tarfile reads."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._read = reader_of(parts)

    def read(self, size: int = -1) -> bytes:
        return self._read(size)
