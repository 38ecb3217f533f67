"""A proxy's reports of sent bytes are counted once, even if answers are lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controlplane.database.version import conninfo
from controlplane.models import Account, Plan, Usage
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.traffic import Traffic
from controlplane.proxy.directory.usage_reports import TrafficReports
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from tests.controlplane.rows import make_host, make_project


class LossyDatabase(ControlDatabase):
    """The service's own database. Loses its answers or the questions, as `loses` says."""

    loses = ""

    async def ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        if self.loses == "question":
            raise ControlPlaneUnavailable
        answer = await super().ask(question)
        if self.loses == "answer":
            raise ControlPlaneUnavailable
        return answer


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("loses", ["question", "answer"])
def test_a_report_whose_answer_is_lost_is_sent_again_unchanged(loses: str) -> None:
    account = Account.objects.create(name="carol", plan=Plan.UNLIMITED)
    endpoint = make_project(account, make_host("reports")).endpoints.get()
    database, traffic = LossyDatabase(conninfo()), Traffic()
    reports = TrafficReports(database, traffic)

    async def go() -> None:
        with traffic.counting(endpoint.id, endpoint.branch_id) as tally:
            tally.bytes += 10
            database.loses = loses
            for _ in range(2):
                with pytest.raises(ControlPlaneUnavailable):
                    await reports.report()
                tally.bytes += 1
            database.loses = ""
            await reports.report()
            tally.bytes += 5
        await reports.report()
        await database.close()

    asyncio.run(go())
    counted = Usage.objects.values_list("span", "transferred_bytes")
    assert dict(counted) == {"hour": 17, "day": 17, "month": 17}
