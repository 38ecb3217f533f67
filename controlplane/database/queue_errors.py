"""Converts Procrastinate's errors of a failing database to Django's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection
from procrastinate.exceptions import ConnectorException


@contextmanager
def database_errors() -> Iterator[None]:
    """A context for code that adds a job to the queue through Django's connection.

    A job is written in its caller's transaction like any row, and callers expect django.db.Error if
    the database fails. Procrastinate wraps such errors in an exception of its own; this context
    raises them as django.db.Error.
    """
    try:
        yield
    except ConnectorException as error:
        if not isinstance(error.__cause__, psycopg.Error):
            raise
        with connection.wrap_database_errors:
            raise error.__cause__ from None
