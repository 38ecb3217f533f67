"""Django without Perch's code, for gunicorn: the least cost of the API's answers.

`/memory/<name>` answers with prepared bytes, `/rows/<name>` with rows that psycopg fetches by one
statement. Both are defined in the file that BENCHMARK_ANSWERS names.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="-", USE_TZ=True)
TOLD = json.loads(Path(os.environ["BENCHMARK_ANSWERS"]).read_text())
BODIES = {name: body.encode() for name, body in TOLD["bodies"].items()}


@cache
def pool() -> ConnectionPool[Any]:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    return ConnectionPool(TOLD["conninfo"], min_size=1, max_size=16, kwargs=options, open=True)


def from_memory(request: HttpRequest, name: str) -> HttpResponse:
    return _answer(BODIES[name])


def from_rows(request: HttpRequest, name: str) -> HttpResponse:
    with pool().connection() as connection:
        rows = connection.execute(*TOLD["statements"][name]).fetchall()
    return _answer(json.dumps(rows, default=str).encode())


def _answer(body: bytes) -> HttpResponse:
    headers = {"Content-Length": str(len(body))}
    return HttpResponse(body, content_type="application/json", headers=headers)


urlpatterns = [path("memory/<name>", from_memory), path("rows/<name>", from_rows)]
application = get_wsgi_application()
