"""Values of columns as JSON, and answers whose conversion is costly."""

import json
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable

import pytest

from controlplane.proxy.over_http.request import ResponseTooLarge
from controlplane.proxy.over_http.results import Results
from controlplane.proxy.over_http.statements import Batch, Statement
from controlplane.proxy.over_http.values import UnreadableArray, encoder
from controlplane.proxy.wire.messages import MalformedMessage
from tests.proxy.over_http.test_costly_input import BRIEF, seconds_for

TEXT, FLOAT8, INT4_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY = 25, 701, 1007, 1022, 1009
ONE = Batch([Statement(b"", [], as_arrays=True)], begin=None, as_text=False)


def answer(*columns: tuple[int, bytes | None], batch: Batch = ONE) -> Results:
    """Return the answer of one row of these columns, given by their types."""
    results = Results(batch)
    count = struct.pack("!H", len(columns))
    described = count + b"".join(
        b"name\0" + struct.pack("!IhIhih", 0, 0, type_oid, -1, -1, 0) for type_oid, _ in columns
    )
    row = count + b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
        for _, value in columns
    )
    results.describe(bytearray(described), 0, len(described))
    results.add(bytearray(row), 0, len(row))
    results.complete(b"SELECT 1\0")
    return results


def longest_stall(work: Callable[[], object]) -> float:
    """Return the processor seconds for which no other thread could go on."""
    longest, is_over = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        while not is_over.is_set():
            began = time.process_time()
            time.sleep(0.001)
            longest = max(longest, time.process_time() - began)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        work()
    finally:
        is_over.set()
        watching.join()
    return longest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"' + "\\\\" * 300_000 + '"}', ["\\" * 300_000]),
        ('{"' + '\\"' * 300_000 + '"}', ['"' * 300_000]),
        ("{" * 6 + "x" * 200_000 + "}" * 6, [[[[[["x" * 200_000]]]]]]),
        ('[0:1]={NULL,"NULL"}', [None, "NULL"]),
        ('{"a\\\\\\"b","",c d}', ['a\\"b', "", "c d"]),
    ],
)
def test_arrays_are_converted_in_linear_time(text: str, value: object) -> None:
    assert json.loads(encoder(TEXT_ARRAY)(text)) == value
    assert seconds_for(lambda: encoder(TEXT_ARRAY)(text)) < BRIEF


@pytest.mark.parametrize("text", ["", "1", "{1", "{1}}", "1{}", '{"1}', '{"1\\"}', "{1}2"])
def test_text_that_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(UnreadableArray):
        encoder(INT4_ARRAY)(text)


LONG_ELEMENT = b'{"' + b'\\"' * 6_000_000 + b'"}'


@pytest.mark.parametrize(
    ("type_oid", "value", "converted"),
    [
        (TEXT_ARRAY, LONG_ELEMENT, ['"' * 6_000_000]),
        (TEXT_ARRAY, b"{" + b"x" * 40_000_000 + b"}", ["x" * 40_000_000]),
        (TEXT, b"\xff" * 20_000_000, "\ufffd" * 20_000_000),
    ],
    ids=["escapes", "a long element", "invalid UTF-8"],
)
def test_a_long_value_lets_other_threads_go_on(
    type_oid: int, value: bytes, converted: object
) -> None:
    results = None

    def convert() -> None:
        nonlocal results
        results = answer((type_oid, value))

    assert longest_stall(convert) < BRIEF / 2
    assert results is not None
    assert json.loads(results.body())["rows"] == [[converted]]


@pytest.mark.parametrize("as_arrays", [True, False])
def test_long_values_beside_short_ones(as_arrays: bool) -> None:
    long = 'é"\\\n\u20ac😀' * 20_000
    escaped = long.replace("\\", "\\\\").replace('"', '\\"')
    array = f'{{a,"{escaped}",NULL,{"b" * 70_000},""}}'
    columns = [(TEXT, None), (TEXT, long), (FLOAT8, "1.5"), (TEXT_ARRAY, array), (TEXT, "")]
    given = [(oid, None if text is None else text.encode()) for oid, text in columns]
    batch = Batch([Statement(b"", [], as_arrays=as_arrays)], begin=None, as_text=False)
    row = json.loads(answer(*given, batch=batch).body())["rows"][0]
    values = [None, long, 1.5, ["a", long, None, "b" * 70_000, ""], ""]
    assert row == (values if as_arrays else {"name": ""})


@pytest.mark.parametrize("type_oid", [FLOAT8, FLOAT8_ARRAY, INT4_ARRAY])
def test_text_that_is_too_long_for_its_type_is_refused(type_oid: int) -> None:
    with pytest.raises(MalformedMessage):
        answer((type_oid, b"1" * 100_000))


def test_a_row_that_is_too_large_as_json_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ResponseTooLarge):
            answer(*[(TEXT, b"\x01" * 5_000_000)] * 6)
        assert tracemalloc.get_traced_memory()[1] < 180_000_000
    finally:
        tracemalloc.stop()


def test_descriptions_and_tags_longer_than_postgres_own_are_refused() -> None:
    with pytest.raises(MalformedMessage):
        Results(ONE).describe(bytearray(300_000), 0, 300_000)
    with pytest.raises(MalformedMessage):
        Results(ONE).complete(b"SELECT " + b"9" * 5000)
