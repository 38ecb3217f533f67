"""Joins a client and a pooler, as `relay` does, but follows where messages begin. So the pooler may
stop and the client stay connected whenever nothing of the client is left in the pooler."""

from collections.abc import Callable

from controlplane.proxy.directory.interface import RECEIVED, Tally
from controlplane.proxy.pooling.conversation import Conversation
from controlplane.proxy.pooling.statement_refusal import StatementRefusal
from controlplane.proxy.relaying.compute import POOLER_ERROR_STATE, ComputeConnection
from controlplane.proxy.relaying.relay import FirstAnswer, Joint, Pump
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import (
    ENDED,
    AdministratorShutdown,
    ProtocolViolation,
    is_let_go,
)
from controlplane.proxy.wire.messages import MalformedMessage
from controlplane.proxy.wire.readiness import Readiness

_ERROR = b"E"
# PgBouncer's errors for clients that it has no server connection for. It then ends the connection.
# Nothing that such a client sent since its last transaction went anywhere.
_HAS_NO_SERVER = (
    "server login has been failing",
    "server login failed",
    "server shutting down",
    "pooler is shutting down",
)
# The SQLSTATE and the routine in the error of a backend that ends with its postmaster.
_TERMINATED_WHILE_READING = ("57P01", "secure_read")


class PooledRelay(Joint):
    """`done` is resolved when client and pooler are no longer joined. The result is None if the
    connection has ended; then both channels are closed. If the client may stay, its channel is
    open, `parked` was called, and the result is what another pooler must be sent."""

    def __init__(
        self,
        client: Channel,
        connection: ComputeConnection,
        conversation: Conversation,
        *,
        refusal: StatementRefusal,
        readiness: Readiness,
        sent: Tally,
        parked: Callable[[], None],
        first_answer: FirstAnswer | None = None,
    ) -> None:
        """The `connection` is one to a pooler."""
        self.done = readiness.loop.create_future()
        self._client = client
        self._compute = connection.channel
        self._conversation = conversation
        self._compute_run = connection.address.compute_run
        self._refusal = refusal
        self._parked = parked
        self._is_elsewhere = connection.is_elsewhere
        # None once the first answer has come.
        self._first_answer = first_answer
        self._has_started = self._client_ended = False
        self._must_park = ""
        # What another pooler must be sent if this one does not take the bytes that it is sent.
        self._undelivered: bytes | None = None
        self._takes_no_more = False
        # The incomplete beginning of an error that may be the pooler's last message.
        self._final_message = b""
        self._upward = Pump(
            readiness,
            source=client,
            sink=self._compute,
            source_ended=self._client_has_ended,
            source_broke=self.close,
            sink_broke=self._stop_upward,
            tally=RECEIVED,
            process=self._from_client,
        )
        self._downward = Pump(
            readiness,
            source=self._compute,
            sink=client,
            source_ended=self._pooler_has_ended,
            source_broke=self._pooler_has_ended,
            sink_broke=self.close,
            tally=sent,
            process=self._from_pooler,
            passed=self._park_if_asked,
        )

    def start(self, *, to_client: bytes, to_pooler: bytes) -> None:
        """Sends the bytes that are due, then relays. The refusal has already filtered
        `to_pooler`."""
        self._downward.start(to_client)
        if not self._closed:
            self._upward.start(b"")
        if to_pooler and not self._closed:
            self._to_pooler(to_pooler)
        self._has_started = True
        self._park_if_asked()

    def park(self, because: str) -> None:
        """Lets go of the pooler as soon as nothing of the client is left there. A client that
        cannot stay is told why."""
        self._must_park = because
        self._park_if_asked()

    def _from_client(self, data: bytes) -> None:
        try:
            data = self._refusal.sent(data)
        except MalformedMessage as error:
            self._refuse(error)
            return
        if data:
            self._to_pooler(data)

    def _from_pooler(self, data: bytes) -> None:
        try:
            data = self._refusal.answered(data)
            if data:
                self._to_client(data)
        except MalformedMessage:
            self._end()

    def _to_pooler(self, data: bytes) -> None:
        if self._first_answer is not None:
            self._first_answer.asked()
        before = self._conversation.resendable
        try:
            self._conversation.sent(data)
        except MalformedMessage as error:
            self._refuse(error)
            return
        if before == b"" and self._compute_run is not None and self._compute_run.has_ended():
            # The pooler would accept the bytes, and wait for another compute at the same address.
            if self._conversation.has_terminated:
                self._end()
            else:
                self._park(data)
            return
        self._undelivered = None if before is None else before + data
        self._upward.push(data)
        # A part of what TLS could not send may have reached the other host.
        if not self._takes_no_more or self._is_elsewhere:
            self._undelivered = None

    def _refuse(self, error: MalformedMessage) -> None:
        self.interrupt(ProtocolViolation(f"invalid message format: {error}").packet())

    def _to_client(self, data: bytes) -> None:
        conversation = self._conversation
        if self._final_message or (
            data.startswith(_ERROR)
            and conversation.is_between_messages
            and conversation.unanswered is not None
        ):
            self._final_message += data
            if not _is_complete(self._final_message):
                return
            data, self._final_message = self._final_message, b""
            again = conversation.unanswered
            if again is not None and self._may_go_on(again, error=data):
                conversation.retries += bool(again)
                self._park(again)
                return
        self._pass_on(data)

    def _may_go_on(self, sent: bytes, *, error: bytes) -> bool:
        """True if this response to `sent` proves that nothing of it was begun, and it has not been
        tried again already."""
        if sent and self._conversation.retries:
            return False
        is_told = self._is_elsewhere and is_let_go(error)
        return is_told or _was_not_begun(sent, error=error)

    def _pass_on(self, data: bytes) -> None:
        if self._first_answer is not None:
            self._first_answer.came()
            self._first_answer = None
        self._conversation.answered(data)
        self._downward.push(data)
        self._park_if_asked()

    def _park_if_asked(self) -> None:
        if not self._must_park or not self._has_started or self._closed:
            return
        if self._client_ended or self._final_message:
            return
        resendable = self._conversation.resendable
        if (
            resendable is not None
            and not self._conversation.awaits_answer
            and self._downward.is_idle
        ):
            self._park(resendable)

    def _park(self, resendable: bytes) -> None:
        self._stop()
        self._parked()
        self.done.set_result(resendable)

    def _client_has_ended(self) -> None:
        self._client_ended = True
        self._compute.end_output()

    def _pooler_has_ended(self) -> None:
        """Ends or parks the client. Postgres reports why it ends a connection, but a pooler does
        not. So if the client must end, it is told here."""
        if self._final_message:
            final_message, self._final_message = self._final_message, b""
            self._pass_on(final_message)
        if self._closed:
            return
        conversation = self._conversation
        resendable = conversation.resendable if self._undelivered is None else self._undelivered
        if self._client_ended or conversation.has_terminated or conversation.received_fatal:
            self._end()
        elif resendable is None:
            self.interrupt(AdministratorShutdown(self._must_park or ENDED).packet())
        else:
            self._park(resendable)

    def _stop_upward(self) -> None:
        """Sends nothing more to the pooler, but still reads what it sends until it ends."""
        self._takes_no_more = True
        self._upward.stop()

    def _is_between_messages(self) -> bool:
        return self._conversation.is_between_messages


def _is_complete(error: bytes) -> bool:
    """True if the whole message has come, or it is longer than any final error of a pooler."""
    try:
        return _first_message(error) is not None
    except MalformedMessage:
        return True


def _first_message(data: bytes) -> bytes | None:
    """Returns the payload of the first message, None while it is not complete. Raises
    MalformedMessage if it is longer than messages.MAX_ERROR_BYTES."""
    for _, start, end in messages.complete_messages(data, limit=messages.MAX_ERROR_BYTES):
        return data[start:end]
    return None


def _was_not_begun(sent: bytes, *, error: bytes) -> bool:
    """True if this response, the first to `sent`, proves that the backend never began to execute
    `sent`."""
    try:
        payload = _first_message(error)
    except MalformedMessage:
        return False  # from a backend: it is longer than a pooler's errors
    if payload is not None:
        fields = messages.error_fields(payload)
        if fields.get("S") == "FATAL" and fields.get("C") == POOLER_ERROR_STATE:
            return fields.get("M", "").startswith(_HAS_NO_SERVER)
        # The compute was killed while its backend waited for input, so the backend had not read a
        # whole query. If the client sent several messages, the backend may have begun on the first.
        is_one_query = sent.startswith(b"Q") and len(sent) == 1 + int.from_bytes(sent[1:5], "big")
        return is_one_query and (fields.get("C"), fields.get("R")) == _TERMINATED_WHILE_READING
    return False
