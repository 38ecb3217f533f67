"""What Procrastinate raises where our own database fails it, as what Django raises for that."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection
from procrastinate.exceptions import ConnectorException


@contextmanager
def database_errors() -> Iterator[None]:
    """Around what puts a job into the queue by Django's connection.

    A job is written in its caller's transaction like any row, and callers know a database that
    fails by django.db.Error alone; Procrastinate hides it behind an exception of its own.
    """
    try:
        yield
    except ConnectorException as error:
        if not isinstance(error.__cause__, psycopg.Error):
            raise
        with connection.wrap_database_errors:
            raise error.__cause__ from None
