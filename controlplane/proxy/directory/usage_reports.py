"""Reports to the control plane that the proxy runs, which endpoints clients connected to, and how
many bytes were sent to them."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from controlplane import clock
from controlplane.models.connecting import ServedHost, report_alive, report_traffic, report_used
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.interface import Key, Traffic
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

# As {name, detail}.
Problems = Sequence[Mapping[str, str]]
# Seconds. A process that is killed loses the traffic that it has not reported.
_ACTIVITY_INTERVAL = 2.0
TRAFFIC_INTERVAL = 5.0


class TrafficReports:
    """A batch whose answer was lost is sent again unchanged, under the same number, by which the
    database knows whether it has counted it. Bytes sent meanwhile wait for the next batch."""

    def __init__(self, database: ControlDatabase, traffic: Traffic) -> None:
        self._database = database
        self._traffic = traffic
        # Identifies this process for as long as it runs.
        self._reporter = uuid.uuid4()
        self._number = 0
        self._batch: Mapping[Key, int] = {}

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            await asyncio.sleep(TRAFFIC_INTERVAL)
            with contextlib.suppress(ControlPlaneUnavailable):
                await self.report()

    async def report(self) -> None:
        """Reports all bytes sent until now. Raises ControlPlaneUnavailable."""
        if self._batch:
            await self._send()
        self._batch = self._traffic.take()
        if self._batch:
            self._number += 1
            await self._send()

    async def _send(self) -> None:
        report = partial(
            report_traffic, reporter=self._reporter, number=self._number, sent=self._batch
        )
        await self._database.ask(report)
        self._batch = {}


class ServedElsewhere(Exception):
    """Another state directory, or a copy of this one, serves the host now."""


class ActivityReports:
    def __init__(
        self, database: ControlDatabase, served: ServedHost, problems: Callable[[], Problems]
    ) -> None:
        self._database = database
        self._served = served
        self._problems = problems
        # The first report may precede the start's own claim of the host (`operations.own_host`).
        self._was_ours = False
        # When a client last connected to each endpoint.
        self._used: dict[str, datetime] = {}

    def note_use(self, endpoint_id: str) -> None:
        self._used[endpoint_id] = clock.now()

    async def run(self) -> None:
        """Reports until cancelled. Reports that the database did not take are sent again later.
        Raises ServedElsewhere."""
        while True:
            used, self._used = self._used, {}
            try:
                alive = partial(report_alive, served=self._served, problems=self._problems())
                if await self._database.ask(alive):
                    self._was_ours = True
                elif self._was_ours:
                    raise ServedElsewhere
                # One by one: a statement that locks only one row cannot cause a deadlock.
                for endpoint_id in list(used):
                    at = used[endpoint_id]
                    await self._database.ask(partial(report_used, endpoint_id=endpoint_id, at=at))
                    del used[endpoint_id]
            except ControlPlaneUnavailable:
                self._used = {**used, **self._used}
            await asyncio.sleep(_ACTIVITY_INTERVAL)
