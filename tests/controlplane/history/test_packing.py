"""The format of objects in the history's store: whatever is not what was written is an error."""

import base64
import os
import tarfile
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.compute.host.tree import TreeUntrusted, open_directory
from controlplane.history.store import packing
from controlplane.history.store.packing import (
    BLOCK_BYTES,
    HEADER,
    Damaged,
    Keyring,
    WrongKey,
    pack,
    tree_stream,
    unpack,
    write_tree,
)

EXACT = base64.b64encode(bytes(range(32))).decode()
KEYRING = Keyring(EXACT, bytes(16))


def packed(content: bytes, name: str = "a/b") -> bytes:
    return b"".join(pack(name, [content], KEYRING))


def unpacked(found: bytes, name: str = "a/b", keyring: Keyring = KEYRING) -> bytes:
    return b"".join(unpack(name, [found], keyring))


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 17]
)
def test_content_comes_back(size: int) -> None:
    content = os.urandom(size)
    assert unpacked(packed(content)) == content


def test_content_is_compressed_and_encrypted() -> None:
    found = packed(b"secret " * 100_000)
    assert len(found) < 2000
    assert b"secret" not in found
    assert packed(b"the same") != packed(b"the same")


@pytest.mark.parametrize("secret", [EXACT, "a passphrase"])
def test_a_wrong_key_is_recognized(secret: str) -> None:
    found = packed(b"content")
    with pytest.raises(WrongKey, match="PERCH_HISTORY_KEY"):
        unpacked(found, keyring=Keyring(f"{secret} ", bytes(16)))


def test_a_passphrase_opens_what_another_host_wrote() -> None:
    one, other = (Keyring("a passphrase", salt * 16) for salt in (b"1", b"2"))
    assert unpacked(b"".join(pack("a/b", [b"content"], one)), keyring=other) == b"content"


def test_an_object_that_was_cut_short_is_an_error() -> None:
    found = packed(os.urandom(2 * BLOCK_BYTES))
    ends = [0, 10, HEADER.size, HEADER.size + 2, len(found) // 2, len(found) - 1]
    for end in ends:
        with pytest.raises(Damaged):
            unpacked(found[:end])


def test_an_object_without_its_last_frames_is_an_error() -> None:
    """Cut between two frames, all that is left is authentic."""
    content = os.urandom(2 * BLOCK_BYTES)
    found = packed(content)
    length = int.from_bytes(found[HEADER.size : HEADER.size + 4], "little")
    first = HEADER.size + 4 + length
    parts = unpack("a/b", [found[:first]], KEYRING)
    assert next(parts) == content[:BLOCK_BYTES]
    with pytest.raises(Damaged, match="cut short"):
        next(parts)


def test_a_changed_byte_anywhere_is_an_error() -> None:
    found = packed(b"content")
    for place in range(len(found)):
        changed = bytearray(found)
        changed[place] ^= 1
        with pytest.raises((Damaged, WrongKey)):
            unpacked(bytes(changed))
    with pytest.raises(Damaged, match="after its end"):
        unpacked(found + b"x")


def test_another_object_under_its_name_is_an_error() -> None:
    with pytest.raises(Damaged, match="another object"):
        unpacked(packed(b"content", "a/b"), "a/c")


def test_large_content_takes_little_memory() -> None:
    def content() -> Iterator[bytes]:
        for _ in range(64):
            yield os.urandom(BLOCK_BYTES)

    tracemalloc.start()
    try:
        total = sum(map(len, unpack("a", pack("a", content(), KEYRING), KEYRING)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 64 * BLOCK_BYTES
    assert most < 16 * BLOCK_BYTES


@pytest.fixture(params=["as now", "as before Python 3.11.4"])
def unpacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 12 has Python 3.11.2, whose tarfile has no filters."""
    if request.param != "as now":
        monkeypatch.setattr(packing, "FILTER", {})


@pytest.mark.usefixtures("unpacking")
def test_a_directory_comes_back_without_what_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "base" / "1").mkdir(parents=True)
    (source / "base" / "1" / "259").write_bytes(os.urandom(100_000))
    (source / "empty").touch()
    (source / "a link").symlink_to("/etc/passwd")
    (source / "pg_wal").mkdir()
    (source / "pg_wal" / "log").write_bytes(b"log")
    with open_directory(source) as directory:
        write_tree(tree_stream(directory, skip=["pg_wal"]), tmp_path / "target")
    found = {path.relative_to(tmp_path / "target") for path in (tmp_path / "target").rglob("*")}
    assert set(map(str, found)) == {"base", "base/1", "base/1/259", "empty", "pg_wal"}
    expected = (source / "base" / "1" / "259").read_bytes()
    assert (tmp_path / "target" / "base" / "1" / "259").read_bytes() == expected


@pytest.mark.usefixtures("unpacking")
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_an_archive_cannot_write_outside_of_its_directory(tmp_path: Path, kind: bytes) -> None:
    for name in ("../outside", "/tmp/outside-of-it", "base/../../outside"):
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        with pytest.raises(Damaged):
            write_tree([info.tobuf(), bytes(1024)], tmp_path / name.replace("/", " "))
    assert not (tmp_path / "outside").exists()
    assert not Path("/tmp/outside-of-it").exists()


def test_an_archive_contains_only_directories_and_files(tmp_path: Path) -> None:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = tarfile.SYMTYPE, "base"
    with pytest.raises(Damaged, match="contains 'link'"):
        write_tree([info.tobuf(), bytes(1024)], tmp_path / "target")


def test_a_directory_with_what_no_compute_writes_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "deep" / "/".join("a" * 20)).mkdir(parents=True)
    with pytest.raises(TreeUntrusted, match="nested deeper"):
        pack_tree(tmp_path / "deep")
    (tmp_path / "linked").mkdir()
    (tmp_path / "of another").write_bytes(b"secret")
    os.link(tmp_path / "of another", tmp_path / "linked" / "1259")
    pack_tree(tmp_path / "linked")
    if os.geteuid() == 0:
        os.chown(tmp_path / "of another", 50_002, 50_002)
        with pytest.raises(TreeUntrusted, match="belongs to another account"):
            pack_tree(tmp_path / "linked")


def pack_tree(place: Path) -> None:
    with open_directory(place) as directory:
        deque(tree_stream(directory), maxlen=0)
