"""The secret key: a wrong one is refused, and another one can take its place while Perch runs."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client as DjangoClient

from controlplane import encryption
from controlplane.database.secret_keys import (
    OtherSecretKey,
    RotationRefused,
    refuse_other_key,
    rotate,
)
from controlplane.database.version import conninfo
from controlplane.encryption import LOCK_CLASS, hold_present_key
from controlplane.environment import envsecret
from controlplane.history.store.objects import configured_store
from controlplane.history.store.packing import WrongKey
from controlplane.models import FormerPassword, SecretKey
from tests.support.commands import begun, ran
from tests.support.waiting import wait_for

OLD, NEW = "the old key", "the new key"


def said() -> list[str]:
    """Rotate, and return the messages."""
    lines: list[str] = []
    rotate(lines.append)
    return lines


def in_use() -> set[str]:
    return set(SecretKey.objects.filter(retired_at=None).values_list("fingerprint", flat=True))


def keep(count: int = 3) -> None:
    FormerPassword.objects.bulk_create(
        FormerPassword(
            branch_id="br-x",
            verifier="",
            encrypted_password=encryption.encrypt(
                f"password {number}", purpose=encryption.ROLE_PASSWORDS
            ),
            replaced_at="2026-01-01T00:00:00Z",
        )
        for number in range(count)
    )


def passwords() -> list[str]:
    return [
        encryption.decrypt(one.encrypted_password, purpose=encryption.ROLE_PASSWORDS)
        for one in FormerPassword.objects.order_by("id")
    ]


@pytest.fixture
def old_key(transactional_db: None, settings: Any) -> Any:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OLD, []
    refuse_other_key()
    return settings


@pytest.fixture
def new_key(old_key: Any) -> Any:
    """The settings with the new key in front of the old one, which has encrypted some values."""
    keep()
    # As a restart does.
    connection.close()
    old_key.SECRET_KEY, old_key.SECRET_KEY_FALLBACKS = NEW, [OLD]
    refuse_other_key()
    return old_key


class TestWrongKey:
    def test_it_works(self, old_key: Any) -> None:
        refuse_other_key()
        assert len(in_use()) == 1

    def test_another_key_is_refused(self, old_key: Any) -> None:
        old_key.SECRET_KEY = NEW
        with pytest.raises(OtherSecretKey, match="PERCH_SECRET_KEY_FALLBACKS"):
            refuse_other_key()
        assert len(in_use()) == 1

    def test_while_the_key_is_replaced_both_are_required(self, new_key: Any) -> None:
        assert len(in_use()) == 2
        new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = OLD, [NEW]
        refuse_other_key()
        for alone in (OLD, NEW):
            new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = alone, []
            with pytest.raises(OtherSecretKey):
                refuse_other_key()

    def test_a_database_without_a_fingerprint_is_recognized_by_its_passwords(
        self, api: DjangoClient, settings: Any, transactional_db: None
    ) -> None:
        body = {"project": {"name": "first"}}
        assert api.post("/api/v2/projects", body, "application/json").status_code == 201
        present, settings.SECRET_KEY = settings.SECRET_KEY, NEW
        with pytest.raises(OtherSecretKey):
            refuse_other_key()
        settings.SECRET_KEY = present
        refuse_other_key()
        assert len(in_use()) == 1


class TestRotation:
    def test_it_works(self, new_key: Any) -> None:
        assert passwords() == ["password 0", "password 1", "password 2"]
        assert any("formerpassword" in line and "3 encrypted" in line for line in said())
        new_key.SECRET_KEY_FALLBACKS = []
        refuse_other_key()
        assert passwords() == ["password 0", "password 1", "password 2"]
        assert len(in_use()) == 1
        assert not any("encrypted with the present key:" in line for line in said())

    def test_a_value_that_no_key_reads_stays(self, new_key: Any) -> None:
        FormerPassword.objects.filter(id=FormerPassword.objects.earliest("id").id).update(
            encrypted_password="gAAAA"
        )
        assert any(line.startswith("1 values can be read with none") for line in said())
        assert FormerPassword.objects.filter(encrypted_password="gAAAA").exists()

    def test_a_process_with_the_old_key_keeps_it_from_ending(self, new_key: Any) -> None:
        with psycopg.connect(conninfo(), autocommit=True) as other:
            new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = OLD, [NEW]
            other.execute(hold_present_key())
            new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = NEW, [OLD]
            with pytest.raises(RotationRefused, match="restart every process"):
                said()
            assert len(in_use()) == 2
        wait_for(lambda: not _is_held_by_others(), "the end of the connection")
        said()
        assert len(in_use()) == 1

    def test_a_copy_that_a_transaction_stores_meanwhile_is_found(self, new_key: Any) -> None:
        """It has read a value before the rotation, and stores it after the first pass."""
        with psycopg.connect(conninfo()) as other:
            row = other.execute(
                "SELECT encrypted_password FROM controlplane_formerpassword LIMIT 1"
            ).fetchone()

            def store(line: str) -> None:
                if "Waiting" in line:
                    other.execute(
                        "INSERT INTO controlplane_formerpassword"
                        " (branch_id, verifier, encrypted_password, replaced_at)"
                        " VALUES ('br-y', '', %s, now())",
                        row,
                    )
                    other.commit()

            rotate(store)
        new_key.SECRET_KEY_FALLBACKS = []
        assert len(passwords()) == 4

    @pytest.mark.thorough
    def test_it_continues_after_kill_9(self, new_key: Any) -> None:
        new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = OLD, [NEW]
        FormerPassword.objects.all().delete()
        keep(20_000)
        connection.close()
        new_key.SECRET_KEY, new_key.SECRET_KEY_FALLBACKS = NEW, [OLD]
        environment = {
            "DATABASE_URL": conninfo(),
            "PERCH_SECRET_KEY": NEW,
            "PERCH_SECRET_KEY_FALLBACKS": OLD,
        }
        process = begun("rotate_secret_key", **environment)
        wait_for(lambda: _is_current(FormerPassword.objects.earliest("id")), "its beginning")
        process.kill()
        process.communicate()
        assert not _is_current(FormerPassword.objects.latest("id"))
        assert len(in_use()) == 2
        assert "Everything is encrypted" in ran("rotate_secret_key", status=0, **environment)
        new_key.SECRET_KEY_FALLBACKS = []
        assert len(passwords()) == 20_000


def _is_current(row: FormerPassword) -> bool:
    purpose = encryption.ROLE_PASSWORDS
    return encryption.reencrypt(row.encrypted_password, purpose=purpose) is None


def _is_held_by_others() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_locks WHERE classid::bigint = %s AND pid <> pg_backend_pid()",
            [LOCK_CLASS],
        )
        return cursor.fetchone() is not None


def test_the_history_in_the_store_is_read_after_a_rotation(tmp_path: Path, settings: Any) -> None:
    settings.HISTORY_STORE, settings.HISTORY_KEY = f"file://{tmp_path}/store", ""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OLD, []
    store = configured_store()
    assert store is not None
    store.put("regions/a", b"content")
    settings.SECRET_KEY = NEW
    stranger = configured_store()
    assert stranger is not None
    with pytest.raises(WrongKey):
        b"".join(stranger.get("regions/a"))
    # With the old key as a fallback, and then with what the worker has kept in the store.
    settings.SECRET_KEY_FALLBACKS = [OLD]
    turned = configured_store()
    assert turned is not None
    assert b"".join(turned.get("regions/a")) == b"content"
    turned.keep_former_keys(encryption.history_keys()[1:])
    settings.SECRET_KEY_FALLBACKS = []
    later = configured_store()
    assert later is not None
    assert b"".join(later.get("regions/a")) == b"content"
    # Another rotation keeps both.
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the third key", [NEW]
    third = configured_store()
    assert third is not None
    third.keep_former_keys(encryption.history_keys()[1:])
    settings.SECRET_KEY_FALLBACKS = []
    last = configured_store()
    assert last is not None
    assert b"".join(last.get("regions/a")) == b"content"


@pytest.mark.django_db(transaction=True)
def test_a_process_without_a_readable_key_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """It would encrypt with a random key that nobody has, and lock the others out."""
    monkeypatch.delenv("PERCH_SECRET_KEY", raising=False)
    monkeypatch.setenv("PERCH_SECRET_KEY_FILE", str(tmp_path / "missing" / "key"))
    settings.SECRET_KEY = envsecret("PERCH_SECRET_KEY", tmp_path / "key", makes=False)
    with pytest.raises(OtherSecretKey, match="there is no secret key: set PERCH_SECRET_KEY"):
        refuse_other_key()
    assert in_use() == set()
