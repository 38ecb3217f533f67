"""A webhook as its owner uses it, and what tests do behind the API: write events, and let time
pass."""

import base64
import hashlib
import hmac
import uuid
from collections.abc import Sequence
from typing import Any

from tests.support.client import Client
from tests.support.receiver import Message
from tests.support.stack import Stack
from tests.support.waiting import wait_for

TIMES = ("next_attempt_at", "gives_up_at", "attempted_at", "created_at", "ended_at")
WEBHOOK_TIMES = ("failing_since", "held_until", "previous_secret_until")


class Webhook:
    """A webhook of the client's account with the address `url`."""

    def __init__(self, stack: Stack, client: Client, url: str, **attributes: Any) -> None:
        self.stack = stack
        self.client = client
        body = {"webhook": {"url": url, "event_types": ["*"], **attributes}}
        self.created = client.post("/webhooks", body)["webhook"]
        self.id: str = self.created["id"]
        self.secret: str = self.created["secret"]
        self.path = f"/webhooks/{self.id}"

    def get(self) -> Any:
        return self.client.get(self.path)["webhook"]

    def change(self, **attributes: Any) -> Any:
        return self.client.patch(self.path, {"webhook": attributes})["webhook"]

    def delete(self) -> None:
        self.client.delete(self.path)

    def deliveries(self, **query: Any) -> list[Any]:
        """Return the deliveries, newest first."""
        found: list[Any] = self.client.get(f"{self.path}/deliveries", **query)["deliveries"]
        return found

    def delivery(self, delivery_id: str) -> Any:
        return self.client.get(f"{self.path}/deliveries/{delivery_id}")["delivery"]

    def resend(self, delivery_id: str) -> Any:
        return self.client.post(f"{self.path}/deliveries/{delivery_id}/resend")["delivery"]

    def test(self) -> Any:
        return self.client.post(f"{self.path}/test")["delivery"]

    def await_delivery(self, **expected: Any) -> Any:
        """Wait until the newest delivery is as expected, and return it."""

        def is_there() -> bool:
            newest = self.deliveries(limit=1)
            return bool(newest) and expected.items() <= newest[0].items()

        wait_for(is_there, f"a delivery with {expected} of {self.id}")
        return self.deliveries(limit=1)[0]

    # behind the API

    def write_events(self, summaries: Sequence[str], kind: str = "project.updated") -> None:
        """Write events of the account, each in a transaction of its own."""
        with self.stack.database() as database:
            for summary in summaries:
                database.execute(
                    "INSERT INTO controlplane_event (account_id, type, operation_ids, actor_type,"
                    " actor_name, address, at, summary, changes) SELECT account_id, %s, '{}',"
                    " 'platform', '', '', now(), %s, '{}' FROM controlplane_webhook WHERE id = %s",
                    [kind, summary, self.id],
                )

    def let_pass(self, *, hours: float) -> None:
        """Move everything so far into the past, so that what would be due by then is due. Waits
        until the webhook's job has ended, because that may set when the next one begins."""
        wait_for(self._is_at_rest, f"the job of {self.id} to end")
        with self.stack.database() as database, database.transaction():
            for table, key, times in (
                ("controlplane_webhook", "id", WEBHOOK_TIMES),
                ("controlplane_webhookdelivery", "webhook_id", TIMES),
                ("controlplane_job", "subject", ("due_at",)),
            ):
                earlier = ", ".join(f"{time} = {time} - %(span)s::interval" for time in times)
                database.execute(
                    f"UPDATE {table} SET {earlier} WHERE {key} = %(id)s".encode(),
                    {"span": f"{hours} hours", "id": self.id},
                )

    def _is_at_rest(self) -> bool:
        with self.stack.database() as database:
            return not database.execute(
                "SELECT FROM controlplane_job WHERE subject = %s"
                " AND (taken_by IS NOT NULL OR due_at <= now())",
                [self.id],
            ).fetchall()

    def row(self, *columns: str) -> tuple[Any, ...]:
        with self.stack.database() as database:
            found = database.execute(
                f"SELECT {', '.join(columns)} FROM controlplane_webhook WHERE id = %s".encode(),
                [self.id],
            ).fetchone()
        assert found is not None
        return found


def signatures(message: Message) -> list[str]:
    return message.headers["webhook-signature"].split(" ")


def signature(secret: str, message: Message) -> str:
    """Return the signature that the receiver of a message computes, as Standard Webhooks defines
    it."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join(
        [
            message.headers["webhook-id"].encode(),
            message.headers["webhook-timestamp"].encode(),
            message.body,
        ]
    )
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def new_name() -> str:
    return uuid.uuid4().hex
