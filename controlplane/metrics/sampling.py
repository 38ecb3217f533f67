"""Starts a process's figures, and samples what the process uses: memory, processor, descriptors,
database connections."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.database.base import DatabaseWrapper
from controlplane.metrics import figures, values

log = logging.getLogger(__name__)

SAMPLE_INTERVAL = 5.0


def begin(process: str) -> Callable[[], None]:
    """Keep this process's figures for `manage.py metrics` from now on, under the name `process`.
    Returns a function that takes a sample; the caller calls it every SAMPLE_INTERVAL seconds. With
    METRICS_LISTEN=off nothing is kept. Must be called after the last fork."""
    if settings.METRICS_LISTEN == "off":
        return lambda: None
    values.begin(Path(settings.METRICS_DIR), process, figures.known_names())
    figures.PROCESSES.labels(process).set(1)
    figures.STARTS.labels(process).inc()
    return _Sampler(process).sample


def begin_in_thread(process: str) -> None:
    """As `begin`, but samples in a thread of its own."""
    sample = begin(process)
    threading.Thread(target=_repeat, args=[sample], daemon=True, name="metrics").start()


def _repeat(sample: Callable[[], None]) -> None:
    while True:
        sample()
        time.sleep(SAMPLE_INTERVAL)


class _Sampler:
    def __init__(self, process: str) -> None:
        self._name = process
        self._process = psutil.Process()
        self._processor_seconds = 0.0
        self._pool: Mapping[str, int] = {}

    def sample(self) -> None:
        try:
            self._sample()
        except (OSError, psutil.Error):
            # For example, no file descriptor is left. The process itself goes on.
            log.exception("figures not sampled")

    def _sample(self) -> None:
        name = self._name
        figures.MEMORY.labels(name).set(self._process.memory_info().rss)
        figures.OPEN_FILES.labels(name).set(len(os.listdir("/proc/self/fd")))
        spent = time.process_time()
        figures.CPU.labels(name).inc(spent - self._processor_seconds)
        self._processor_seconds = spent
        pool = DatabaseWrapper.pool_statistics()
        size, available = pool.get("pool_size", 0), pool.get("pool_available", 0)
        figures.POOL.labels(name, "idle").set(available)
        figures.POOL.labels(name, "used").set(size - available)
        figures.POOL_WAITING.labels(name).set(pool.get("requests_waiting", 0))
        figures.POOL_WAITS.labels(name).inc(self._added(pool, "requests_wait_ms") / 1000)
        figures.POOL_TIMEOUTS.labels(name).inc(self._added(pool, "requests_errors"))
        self._pool = pool

    def _added(self, pool: Mapping[str, int], count: str) -> int:
        """By how much the count has grown since the last sample."""
        return max(0, pool.get(count, 0) - self._pool.get(count, 0))
