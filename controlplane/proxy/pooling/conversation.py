"""Follows the messages between a pooled client and its pooler, as far as is needed to know when
nothing of the client is left in the pooler. Then the pooler may stop, and another replace it.

Both sides are untrusted. If the messages are inconsistent, or following them would take too much
memory, the client ends with its pooler, as it would without this module.
"""

import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from controlplane.proxy.wire.messages import Message, MessageStream

# The most bytes of a client that are kept to be sent again if no backend began to execute them.
_MAX_RESENT_BYTES = 65536
# The most prepared statements of a client, and their total bytes.
_MAX_STATEMENTS = 1000
_MAX_PREPARED_BYTES = 131_072
# The most requests that await their answers.
_MAX_AWAITED = 8192
_MAX_PARAMETERS = 64
_MAX_PARAMETER_BYTES = 1024
_MAX_ERROR_BYTES = 16_384

_BIND, _CLOSE, _DESCRIBE, _EXECUTE, _FUNCTION = b"BCDEF"
_FLUSH, _PARSE, _QUERY, _SYNC, _TERMINATE = b"HPQSX"
_COPY_DONE, _COPY_FAIL = b"cf"
# The messages that are answered by a ReadyForQuery.
_ENDS_A_GROUP = (_QUERY, _SYNC, _FUNCTION)
# The messages that make Postgres do something that may last.
_EXECUTING = (_QUERY, _EXECUTE, _FUNCTION)
_SENT = {
    **dict.fromkeys(b"BDEFHQSXcf", 0),
    _PARSE: _MAX_PREPARED_BYTES,
    _CLOSE: _MAX_PREPARED_BYTES,
}

_CLOSE_COMPLETE, _COMMAND_COMPLETE, _COPY_IN, _ERROR = b"3CGE"
_PARAMETER_STATUS, _PARSE_COMPLETE, _READY = b"S1Z"
_FORGETS_STATEMENTS = (b"DEALLOCATE ALL\0", b"DISCARD ALL\0")
_ANSWERED = {
    _CLOSE_COMPLETE: 0,
    _COMMAND_COMPLETE: max(map(len, _FORGETS_STATEMENTS)),
    _COPY_IN: 0,
    _ERROR: _MAX_ERROR_BYTES,
    _PARAMETER_STATUS: _MAX_PARAMETER_BYTES,
    _PARSE_COMPLETE: 0,
    _READY: 1,
}
# In Postgres's errors, in any language, and in PgBouncer's.
_FATAL = re.compile(rb"SFATAL\0|(?s:.*)\0V(?:FATAL|PANIC)\0")
_OUTSIDE_TRANSACTIONS = b"I"


@dataclass(frozen=True, slots=True)
class _Pending:
    """A Parse or Close message that has not been answered yet."""

    # The number of its group of messages, which a ReadyForQuery ends.
    group: int
    kind: int
    # b"" for the unnamed statement, and for a portal.
    name: bytes
    payload: bytes = b""

    @property
    def size(self) -> int:
        return len(self.name) + len(self.payload)


class Conversation:
    """The state of one client; `begin` is called for each pooler that the client comes to."""

    def __init__(self) -> None:
        # The payloads of the Parse messages, by statement name.
        self.statements: dict[bytes, bytes] = {}
        # The values that the pooler has reported to the client.
        self.parameters: dict[bytes, bytes] = {}
        # How many times a pooler gave up on the unanswered bytes since the client was last idle.
        self.retries = 0
        self._is_not_followed = False
        self.begin()

    def begin(self) -> None:
        """Begins with a pooler that has greeted the client and has been sent nothing."""
        self._sent = MessageStream(_SENT)
        self._answered = MessageStream(_ANSWERED)
        self._awaited: deque[int] = deque()
        self._pending: deque[_Pending] = deque()
        self._prepared = sum(map(len, self.statements.values()))
        self._group = self._answered_groups = 0
        self._is_copying = False
        self.has_terminated = self.received_fatal = False
        self._rest()

    def _rest(self) -> None:
        """The client is between transactions: nothing is unanswered."""
        self._unanswered: bytearray | None = bytearray()
        self._may_have_executed = self.awaits_answer = self._is_group_open = False

    @property
    def unanswered(self) -> bytes | None:
        """The bytes that the client has sent since it was idle, if nothing was answered. None if
        something was, or if that is not known."""
        if (
            self._unanswered is None
            or self._is_not_followed
            or self.has_terminated
            or self.received_fatal
        ):
            return None
        return bytes(self._unanswered)

    @property
    def resendable(self) -> bytes | None:
        """The bytes to send to another pooler so that the client can go on there as if nothing had
        happened. None if it cannot: Postgres may have begun to execute something."""
        return None if self._may_have_executed else self.unanswered

    @property
    def is_between_messages(self) -> bool:
        """True if the bytes that the client is sent next begin a message."""
        return self._answered.is_between

    def sent(self, data: bytes) -> None:
        """Notes bytes that the client sends to the pooler. Raises MalformedMessage."""
        if self._unanswered is not None:
            if len(self._unanswered) + len(data) <= _MAX_RESENT_BYTES:
                self._unanswered += data
            else:
                self._unanswered = None
        for message in self._sent.feed(data):
            kind = message.kind
            if kind == _TERMINATE:
                self.has_terminated = True
            elif self._is_not_followed:
                continue
            elif kind in _ENDS_A_GROUP:
                self._end_group(kind)
            elif kind in (_COPY_DONE, _COPY_FAIL):
                self._is_copying = False
            elif kind == _FLUSH:
                self.awaits_answer = True
            else:
                self._is_group_open = True
                self._may_have_executed |= kind == _EXECUTE
                if kind in (_PARSE, _CLOSE):
                    self._await(message)

    def _end_group(self, kind: int) -> None:
        self._may_have_executed |= kind in _EXECUTING
        self.awaits_answer = True
        if kind == _SYNC and self._is_copying:
            return  # Postgres ignores a Sync during COPY
        self._is_group_open = False
        self._group += 1
        self._awaited.append(kind)
        if len(self._awaited) > _MAX_AWAITED:
            self._stop_following()

    def _await(self, message: Message) -> None:
        kind, payload = message.kind, message.payload
        if kind == _CLOSE:
            # A Close of a portal is answered in the same way; its payload starts with P.
            name = payload[1:].partition(b"\0")[0] if payload.startswith(b"S") else b""
            payload = b""
        else:
            name = payload.partition(b"\0")[0]
            payload = payload if name else b""
        pending = _Pending(self._group, kind, name, payload)
        self._pending.append(pending)
        self._prepared += pending.size
        if (
            (name and not message.is_whole)
            or len(self._pending) > _MAX_AWAITED
            or len(self.statements) > _MAX_STATEMENTS
            or self._prepared > _MAX_PREPARED_BYTES
        ):
            self._stop_following()

    def answered(self, data: bytes) -> None:
        """Notes bytes that the pooler sends to the client. Raises MalformedMessage."""
        if self._unanswered:
            self._unanswered = None
        for message in self._answered.feed(data):
            kind = message.kind
            if kind == _ERROR:
                self._is_copying = False
                self.received_fatal |= _FATAL.match(message.payload) is not None
            elif self._is_not_followed:
                continue
            elif kind == _READY:
                self._ready(message.payload)
            elif kind == _PARSE_COMPLETE:
                self._complete(_PARSE)
            elif kind == _CLOSE_COMPLETE:
                self._complete(_CLOSE)
            elif kind == _COMMAND_COMPLETE:
                if message.payload in _FORGETS_STATEMENTS:
                    self.forget(list(self.statements))
            elif kind == _PARAMETER_STATUS:
                if message.is_whole:
                    self.note_parameter(message.payload)
            else:
                self._copy_in()

    def _ready(self, status: bytes) -> None:
        self._is_copying = False
        if not self._awaited:
            self._stop_following()
            return
        self._awaited.popleft()
        self._answered_groups += 1
        while self._pending and self._pending[0].group < self._answered_groups:
            # An error before them made Postgres skip them.
            self._prepared -= self._pending.popleft().size
        is_over = not self._awaited and not self._is_group_open and self._sent.is_between
        if status == _OUTSIDE_TRANSACTIONS and is_over:
            self.retries = 0
            self._rest()

    def _copy_in(self) -> None:
        self._is_copying = True
        if self._awaited and self._awaited[0] == _SYNC:
            # The client sent this Sync before it knew of the COPY, and Postgres ignores it. Its
            # group continues up to the next one.
            self._awaited.popleft()
            self._answered_groups += 1

    def _complete(self, kind: int) -> None:
        if not self._pending or self._pending[0].kind != kind:
            self._stop_following()
            return
        done = self._pending.popleft()
        self._prepared -= done.size
        if done.name:
            self._prepared -= len(self.statements.pop(done.name, b""))
        if done.payload:
            self._prepared += len(done.payload)
            self.statements[done.name] = done.payload

    def forget(self, names: Collection[bytes]) -> None:
        """Removes these prepared statements, which no longer exist."""
        for name in names:
            self._prepared -= len(self.statements.pop(name, b""))

    def _stop_following(self) -> None:
        """Gives up following. The client ends with its pooler, and nothing of it is kept."""
        self._is_not_followed = True
        self._unanswered = None
        self._awaited.clear()
        self._pending.clear()
        self.statements.clear()
        self._prepared = 0

    def note_parameter(self, status: bytes) -> bool:
        """Notes a ParameterStatus' payload. Returns True if the value is new."""
        name, _, value = status.rstrip(b"\0").partition(b"\0")
        if not name or self.parameters.get(name) == value:
            return False
        if name in self.parameters or len(self.parameters) < _MAX_PARAMETERS:
            self.parameters[name] = value
        return True
