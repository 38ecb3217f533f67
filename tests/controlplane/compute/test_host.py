"""What an attacker in a compute can reach on the host: only the compute's own files and
processes."""

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from controlplane.compute.host.accounts import SERVICE_ACCOUNT, Account, named_account, own_account
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.tree import TreeUntrusted
from tests.support.processes import postmaster_in
from tests.support.project import Project
from tests.support.stack import ROOT, Stack

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")
# Calls `service_account` in eight processes at the same moment, and prints what each gets.
EIGHT_AT_ONCE = """
import multiprocessing, os
from controlplane.compute.host.accounts import service_account

def work(barrier):
    barrier.wait()
    # One write, so that no other process writes between the number and the end of its line.
    os.write(1, b"%d\\n" % service_account().uid)

barrier = multiprocessing.Barrier(8)
processes = [multiprocessing.Process(target=work, args=[barrier]) for _ in range(8)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""
SECRETS = ("PERCH_SECRET_KEY", "DATABASE_URL", "API_KEY")


def everything_of(stack: Stack) -> list[psutil.Process]:
    """Every process of the service, its computes included."""
    found = psutil.Process(stack.pid).children(recursive=True)
    for pid_file in stack.state_dir.glob("branches/br-*/data/postmaster.pid"):
        process = postmaster_in(pid_file.parent)
        found += [process, *process.children(recursive=True)]
    return found


class TestAccounts:
    @as_root
    def test_programs_that_start_at_once_add_the_account_once(self, tmp_path: Path) -> None:
        etc = tmp_path / "etc"
        etc.mkdir()
        for name in ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf"):
            if (original := Path("/etc") / name).exists():
                shutil.copy2(original, etc)
        for name in ("passwd", "group", "shadow", "gshadow"):
            lines = (etc / name).read_text().splitlines(keepends=True)
            kept = [line for line in lines if not line.startswith(f"{SERVICE_ACCOUNT}:")]
            (etc / name).write_text("".join(kept))
        # Only this command sees the copy in place of /etc.
        mounted = 'mount --bind "$0" /etc && exec "$@"'
        given = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mounted, etc, sys.executable, "-c", EIGHT_AT_ONCE],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        assert len(given) == 8
        assert len(set(given)) == 1
        assert (etc / "passwd").read_text().count(f"{SERVICE_ACCOUNT}:") == 1

    @as_root
    def test_other_accounts_cannot_take_the_locks_of_the_host(
        self, stack: Stack, project: Project
    ) -> None:
        for place in Path("/run/perch").iterdir():
            assert stat.S_IMODE(place.stat().st_mode) == 0o700, place

    @as_root
    def test_an_account_is_added_whoever_locks_etc(self) -> None:
        name = f"perch-t{os.getpid()}"
        adding = threading.Thread(target=named_account, args=[name], daemon=True)
        etc = os.open("/etc", os.O_RDONLY)
        try:
            fcntl.flock(etc, fcntl.LOCK_EX)
            adding.start()
            adding.join(20)
            assert pwd.getpwnam(name)
        finally:
            os.close(etc)
            adding.join()
            subprocess.run(["/usr/sbin/userdel", name], check=True)

    @as_root
    def test_every_compute_and_the_metadata_have_their_own_account(
        self, stack: Stack, project: Project
    ) -> None:
        other = project.new_branch(endpoint=True)["branch"]["id"]
        computes = [project.postmaster(branch_id) for branch_id in (project.branch_id, other)]
        metadata = postmaster_in(stack.state_dir / "metadata")
        accounts = [process.uids().effective for process in (*computes, metadata)]
        assert len(set(accounts)) == 3
        assert all(50_000 <= uid <= 59_999 for uid in accounts[:2])
        assert accounts[2] == pwd.getpwnam("perch").pw_uid
        groups = [set(process.gids()) for process in computes]
        assert groups == [{uid} for uid in accounts[:2]]

    @as_root
    def test_files_of_root_are_in_directories_of_root(self, stack: Stack, project: Project) -> None:
        place = stack.state_dir / "branches" / project.branch_id
        uid = (place / "data").stat().st_uid
        for path in (stack.state_dir, stack.state_dir / "branches", stack.state_dir / "sockets"):
            assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, 0o711)
        assert (place.stat().st_uid, place.stat().st_gid) == (0, uid)
        assert stat.S_IMODE(place.stat().st_mode) == 0o710
        for path in place.iterdir():
            found = path.lstat()
            if path.name in ("data", "run"):
                assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (uid, 0o700)
            else:
                assert (found.st_uid, found.st_mode & 0o022) == (0, 0), path
        for name in ("secret-key", "api-key", "tls", "locks", "log"):
            assert stat.S_IMODE((stack.state_dir / name).stat().st_mode) & 0o077 == 0, name

    @as_root
    @pytest.mark.parametrize("who", ["the compute", "the metadata cluster", "a stranger"])
    def test_no_other_account_can_connect_to_the_metadata(
        self, stack: Stack, project: Project, who: str
    ) -> None:
        owner = {
            "the compute": stack.data_dir(project.branch_id),
            "the metadata cluster": stack.state_dir / "metadata",
        }
        uid = owner[who].stat().st_uid if who in owner else 12345
        sockets = stack.state_dir / "sockets" / "metadata"
        done = subprocess.run(
            ["psql", "-XAt", "-h", sockets, "-U", "perch", "-c", "SELECT 1"],
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert any(
            words in done.stderr
            for words in ("Permission denied", "Peer authentication failed", "does not exist")
        )

    def test_no_child_process_has_a_secret(self, stack: Stack, project: Project) -> None:
        key = (stack.state_dir / "secret-key").read_text()
        project.compute().close()
        for process in everything_of(stack):
            try:
                said = [*process.environ().values(), *process.cmdline()]
            except psutil.NoSuchProcess:
                continue
            assert not any(key in words for words in said), process
            own = psutil.Process().uids().effective == process.uids().effective
            assert own or not any(name in process.environ() for name in SECRETS), process


class TestTrees:
    """Copying a directory whose owner may change it at any moment."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        source = tmp_path / "source"
        (source / "base" / "1").mkdir(parents=True)
        (source / "base" / "1" / "1259").write_bytes(b"rows")
        (source / "PG_VERSION").write_text("18\n")
        return source

    def test_links_and_pipes_are_neither_followed_nor_opened(
        self, source: Path, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("the host's")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "file").write_text("the host's")
        (source / "link").symlink_to(secret)
        (source / "directory").symlink_to(tmp_path / "elsewhere")
        os.mkfifo(source / "pipe")
        clone_tree(source, tmp_path / "copy", owner=own_account())
        assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["PG_VERSION", "base"]
        for name in ("link", "pipe"):
            assert read_regular(source / name, 100) == b""

    @as_root
    def test_a_link_to_another_users_file_is_not_copied(self, source: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("the host's")
        for path in (source, source / "base", source / "base/1", source / "base/1/1259"):
            os.chown(path, 50_001, 50_001)
        os.chown(source / "PG_VERSION", 50_001, 50_001)
        os.link(secret, source / "hard")
        with pytest.raises(TreeUntrusted, match="hard"):
            clone_tree(source, tmp_path / "copy", owner=Account(50_002, 50_002))

    def test_the_source_itself_must_not_be_a_link(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(OSError, match="link"):
            clone_tree(tmp_path / "link", tmp_path / "copy", owner=own_account())

    def test_a_tree_that_is_too_deep_is_refused(self, source: Path, tmp_path: Path) -> None:
        (source / "/".join("abcdefghijk")).mkdir(parents=True)
        with pytest.raises(TreeUntrusted, match="deeper"):
            clone_tree(source, tmp_path / "copy", owner=own_account())
