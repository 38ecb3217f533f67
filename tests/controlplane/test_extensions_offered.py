"""Which extensions a host offers depends on the user accounts of its computes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.accounts import shared_account
from controlplane.compute.binaries import default_major
from controlplane.compute.extensions import offered_extensions


@pytest.fixture(autouse=True)
def asked_anew(tmp_path: Path, settings: Any) -> Iterator[None]:
    settings.STATE_DIR = tmp_path
    (tmp_path / "locks").mkdir()
    for asked in (shared_account, offered_extensions):
        asked.cache_clear()
    yield
    for asked in (shared_account, offered_extensions):
        asked.cache_clear()


def offered() -> set[str]:
    ours, system = offered_extensions(default_major()).control_path.split(":")
    assert system == "$system"
    controls = list((Path(ours) / "extension").glob("*.control"))
    assert all("trusted = true" in control.read_text() for control in controls)
    return {control.stem for control in controls}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has accounts to give")
def test_computes_with_separate_accounts_may_connect_to_others() -> None:
    assert {"vector", "pg_stat_statements", "dblink", "postgres_fdw"} <= offered()
    assert offered() & {"file_fdw", "pageinspect", "refint", "hstore"} == set()


def test_computes_with_a_shared_account_may_not_connect(settings: Any) -> None:
    settings.COMPUTE_ACCOUNT = "daemon"
    assert {"vector", "pg_stat_statements"} <= offered()
    assert offered() & {"dblink", "postgres_fdw"} == set()
