"""Reports to the control plane the bytes sent to clients, in batches that are each counted once."""

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from functools import partial

from controlplane.models.connecting import report_traffic
from controlplane.proxy.control_database import ControlDatabase
from controlplane.proxy.errors import ControlPlaneSilent
from controlplane.proxy.traffic import Key, Traffic

# Seconds. A process that is killed loses what it has not reported.
REPORT_EVERY = 5.0


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
            await asyncio.sleep(REPORT_EVERY)
            with contextlib.suppress(ControlPlaneSilent):
                await self.report()

    async def report(self) -> None:
        """Reports all bytes sent until now. Raises ControlPlaneSilent."""
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
