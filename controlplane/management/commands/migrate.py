"""`manage.py migrate`, while processes of the previous version serve.

A migration locks several tables, in another order than requests do. It therefore waits only briefly
for each (`database.base.SchemaEditor`): otherwise Postgres would end requests as deadlocked, and
all others would queue behind the migration. A migration that could not get a lock, or that Postgres
has ended as deadlocked, is undone as a whole, and begins again.
"""

import time
from typing import Any

from django.core.management.commands import migrate
from django.db import OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable

# Seconds: between two attempts, and after which the last error is raised.
RETRY_DELAY, RETRY_TIMEOUT = 0.2, 300.0


class Command(migrate.Command):
    help = "Brings the database's schema up to date."

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        while True:
            try:
                super().handle(*args, **options)
            except OperationalError as error:
                is_in_use = isinstance(error.__cause__, LockNotAvailable | DeadlockDetected)
                if not is_in_use or time.monotonic() - began > RETRY_TIMEOUT:
                    raise
            else:
                return
            time.sleep(RETRY_DELAY)
