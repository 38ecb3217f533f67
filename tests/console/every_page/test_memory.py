"""Large answers and files take a bounded part of the console's memory, of which no account gets
all. None needs a service."""

import json
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
import requests
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from console import memory, middleware
from console.api.bounded_http import read_json
from console.api.transport import Server
from console.memory import Budget, MemoryExhausted, Reservation, TooManyRuns
from console.query import sql_over_http, table_imports, tables
from console.query.csv_text import write_csv
from console.query.place import Refused
from console.query.sql_over_http import Query, SqlFailed, TooLarge
from tests.console.every_page.test_turns import COLUMNS, WIDE
from tests.support.waiting import wait_for

MIB = 1 << 20
SERVER = Server("", "http://127.0.0.1/api/v2")
URI = "postgresql://a:b@localhost/db"


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """A budget of 16 MiB, for which nobody waits."""
    made = Budget(16 * MIB)
    for module in (memory, sql_over_http):
        monkeypatch.setattr(module, "budget", made)
    monkeypatch.setattr(memory, "PATIENCE", 0)
    return made


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Lets the proxy answer with these bytes."""

    def answer_with(content: bytes) -> None:
        class Session(requests.Session):
            def post(self, *args: Any, **named: Any) -> requests.Response:
                answer = requests.Response()
                answer.status_code, answer.raw = 200, BytesIO(content)
                return answer

        monkeypatch.setattr(sql_over_http, "session_for", lambda server: Session())

    return answer_with


def run(held: Reservation) -> Any:
    return sql_over_http.run(
        SERVER, URI, [Query("SELECT")], seconds=1, read_only=False, memory=held
    )


def rows_of(count: int, row: bytes = b"[]") -> bytes:
    return (
        b'{"command": "SELECT", "fields": [], "rows": [' + (row + b",") * (count - 1) + row + b"]}"
    )


def test_an_account_gets_half_of_what_is_left(budget: Budget) -> None:
    with Reservation("a") as first, Reservation("a") as again, Reservation("b") as second:
        first.grow(5 * MIB)
        again.grow(3 * MIB)
        with pytest.raises(MemoryExhausted):
            again.grow(1)
        second.grow(4 * MIB)
        with pytest.raises(MemoryExhausted):
            second.grow(1)
        first.shrink(MIB)
        second.grow(1)
    with Reservation("b") as whole:
        whole.grow(8 * MIB)


def test_a_request_waits_for_memory(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PATIENCE", 60)
    held, later = Reservation("a"), Reservation("a")
    held.grow(8 * MIB)
    waiting = threading.Thread(target=later.grow, args=[8 * MIB])
    waiting.start()
    wait_for(lambda: len(budget._changed._waiters) == 1, "the request to wait")  # type: ignore[attr-defined]
    held.release()
    waiting.join(10)
    assert not waiting.is_alive()
    later.release()


# As many empty rows as an answer has room for.
def test_rows_without_columns_are_not_decoded_without_end(
    answering: Callable[[bytes], None], budget: Budget
) -> None:
    answering(rows_of(2_700_000))
    tracemalloc.start()
    with Reservation("a") as held, pytest.raises(TooLarge, match="more than 1,000,000 rows"):
        run(held)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * MIB


def test_an_answer_for_which_there_is_no_memory_is_refused(
    answering: Callable[[bytes], None], budget: Budget
) -> None:
    answering(rows_of(30_000))
    with Reservation("a") as one, Reservation("a") as two, Reservation("b") as other:
        assert len(run(one)[0].rows) == 30_000
        with pytest.raises(TooLarge, match="no memory for their result now"):
            run(two)
        answering(rows_of(10))
        assert len(run(other)[0].rows) == 10


# As arrays, jsonb and pieces of CSV arrive.
@pytest.mark.parametrize("text", ["{1,2}", '[{"a": 1}, ["b\\"c"]]', '"a\\\\",[\n'])
def test_what_is_within_a_text_is_no_value(
    answering: Callable[[bytes], None], budget: Budget, text: str
) -> None:
    value = text * 20_000
    answering(rows_of(2, json.dumps([value]).encode()))
    with Reservation("a") as held:
        assert run(held)[0].rows == [[value], [value]]


def test_the_runs_of_an_account_are_limited_and_can_be_cancelled(
    answering: Callable[[bytes], None], budget: Budget
) -> None:
    answering(rows_of(1, b'["t"]'))
    runs = [budget.run("a") for _ in range(memory.MAX_RUNS)]
    for one in runs:
        one.__enter__()
    with Reservation("a") as held, pytest.raises(SqlFailed, match="has 8 runs in progress"):
        run(held)
    with pytest.raises(TooManyRuns), budget.run("a"):
        pass
    assert sql_over_http.cancel(SERVER, URI, "m" * 16, account="a")
    with Reservation("b") as held:
        run(held)
    for one in runs:
        one.__exit__(None, None, None)
    with Reservation("a") as held:
        run(held)


@pytest.mark.parametrize(
    "content",
    [
        b"[" + b"[]," * 30_000 + b"1]",
        b"[" + b"{}," * 30_000 + b"1]",
        b"[" + b'{"a":1},' * 30_000 + b"1]",
        b"[" + b"[1]," * 30_000 + b"1]",
        b"[" + b'["ab","cd","ef","gh","ij"],' * 10_000 + b"1]",
        b'["' + b"a" * 1_000_000 + rb'\ud83d\ude00"]',
        ("[" + '"é",' * 30_000 + '"😀' + "a" * 500_000 + '"]').encode(),
        b"[" + b'"\\ud800",' * 30_000 + b"1]",
        b'["[{,' + rb'\"[\\","' * 3000 + b'",' + b"{}," * 30_000 + b"1]",
        # Half of this character is a quotation mark.
        ('["\u2200",' + "[]," * 30_000 + '""]').encode("utf-16"),
    ],
)
def test_memory_is_reserved_before_json_is_decoded(content: bytes) -> None:
    reserved: list[int] = []
    tracemalloc.start()
    read_json(content, reserve=reserved.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < sum(reserved)


@pytest.mark.parametrize(
    ("columns", "rows", "value"),
    [(1, 20_000, "x"), (1, 20_000, "12345678901234567"), (50, 400, "ab"), (1, 5, "😀" * 50_000),
     (1600, 10, "1"), (2, 10_000, "é")],
)  # fmt: skip
def test_memory_is_reserved_before_a_file_is_read(columns: int, rows: int, value: str) -> None:
    names = [column.name for column in COLUMNS[:columns]]
    data = write_csv([names, *[[value] * columns] * rows]).encode()
    tracemalloc.start()
    found, read = table_imports._read(WIDE, data)
    size = max(1, min(table_imports.BATCH_SIZE, table_imports.MAX_PARAMETERS // columns))
    queries = [
        table_imports._query(WIDE, found, [row for _, row in read[start : start + size]])
        for start in range(0, len(read), size)
    ]
    json.dumps([[one.text, one.parameters] for one in queries]).encode()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < table_imports._size_of_import(data)


def test_a_file_that_is_too_large_takes_no_memory(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_imports, "MAX_FILE_BYTES", MIB)
    data = b"n\r\n" + b"1\r\n" * MIB
    with pytest.raises(Refused, match="larger than 1 MiB"), Reservation("a") as held:
        table_imports._receive(SimpleUploadedFile("rows.csv", data), held)


def test_an_export_keeps_no_page_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Text(str):
        pass

    def pages(*given: Any) -> Iterator[str]:
        for _ in range(3):
            yield Text("a\r\n")

    monkeypatch.setattr(tables, "require_perch", lambda request: False)
    monkeypatch.setattr(tables, "connection_uri", lambda *given: URI)
    monkeypatch.setattr(tables, "_pages", pages)
    request: Any = RequestFactory().post("/", {"table": '["public", "t"]'})
    answer: Any = tables.export(request, "a-b-1")
    first = weakref.ref(next(answer._iterator))
    assert next(answer._iterator) == "a\r\n"
    assert first() is None


class TestAnswers:
    """Until an answer is sent, it holds what it takes up."""

    @pytest.fixture
    def whole(self, budget: Budget) -> int:
        return budget._left

    def answered(self, answer: Any) -> Any:
        def view(request: Any) -> Any:
            request.memory.account = "a"
            request.memory.grow(4 * MIB)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return middleware.MemoryMiddleware(view)(RequestFactory().get("/"))  # type: ignore[arg-type]

    def test_it_holds_its_own_length(self, budget: Budget, whole: int) -> None:
        answer = self.answered(HttpResponse("x" * 1000))
        assert budget._left == whole - 1000
        answer.close()
        assert budget._left == whole

    def test_a_stream_holds_all(self, budget: Budget, whole: int) -> None:
        def pieces() -> Iterator[str]:
            yield ""

        answer = self.answered(StreamingHttpResponse(pieces()))
        assert budget._left == whole - 4 * MIB
        answer.close()
        assert budget._left == whole

    def test_a_failure_holds_nothing(self, budget: Budget, whole: int) -> None:
        with pytest.raises(SystemExit):
            self.answered(SystemExit())
        assert budget._left == whole
