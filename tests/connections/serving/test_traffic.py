"""Traffic through the proxy: cancel requests and large data."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import errors

from tests.support.place import Place
from tests.support.waiting import wait_for

LINE = 1 << 20
LINES = 100

tls_and_plain = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
direct_and_pooled = pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])


@pytest.mark.thorough
@direct_and_pooled
@tls_and_plain
def test_a_cancel_request_ends_only_its_own_query(shop: Place, tls: bool, pooled: bool) -> None:
    with (
        shop.connect(tls=tls, pooled=pooled) as patient,
        shop.connect(tls=tls, pooled=pooled) as hasty,
        ThreadPoolExecutor(2) as threads,
    ):
        staying = threads.submit(patient.execute, "SELECT pg_sleep(1)")
        leaving = threads.submit(hasty.execute, "SELECT pg_sleep(60)")
        wait_for(lambda: shop.sleepers() == 2, "both to run")
        hasty.cancel_safe()
        with pytest.raises(errors.QueryCanceled):
            leaving.result(10)
        assert staying.result(10).fetchone() == ("",)
        assert hasty.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture(scope="module")
def freight() -> list[bytes]:
    """Return 100 MB in lines that hardly compress."""
    return [os.urandom(LINE // 2).hex().encode()[:-1] + b"\n" for _ in range(LINES)]


@pytest.mark.thorough
@pytest.mark.parametrize(("tls", "pooled"), [(True, False), (False, True)])
def test_a_copy_of_100_megabytes_is_unchanged_in_both_directions(
    shop: Place, freight: list[bytes], tls: bool, pooled: bool
) -> None:
    sent, received = hashlib.sha256(), hashlib.sha256()
    with shop.connect(tls=tls, pooled=pooled) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS freight")
        cursor.execute("CREATE UNLOGGED TABLE freight (line text STORAGE EXTERNAL)")
        with cursor.copy("COPY freight FROM STDIN") as copy:
            for line in freight:
                copy.write(line)
                sent.update(line)
        with cursor.copy("COPY freight TO STDOUT") as copy:
            for data in copy:
                received.update(data)
        cursor.execute("DROP TABLE freight")
    assert received.digest() == sent.digest()
