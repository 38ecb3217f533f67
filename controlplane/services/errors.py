"""The errors for which a request is refused. Their messages are shown to the caller."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, QueryCanceled

# The operations layer raises these two; the API handles them like the errors here.
from controlplane.operations.engine.scheduling import HostAway as HostAway
from controlplane.operations.engine.scheduling import TooManyUnfinished as TooManyUnfinished


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of a request. `field` is a parameter's name, or the path within
    the resource: "settings.pg_settings.work_mem"."""

    field: str
    message: str


class ServiceError(Exception):
    """A request is refused; nothing was changed. `code` is for programs, often "".

    `errors` say what is wrong with each field; `fields` are names of fields that the message is
    about. The API names those of them that the request has.
    """

    code = ""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        fields: Sequence[str] = (),
        errors: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.errors = (*errors, *(FieldError(name, message) for name in fields))


class Invalid(ServiceError):
    """The request is malformed, or contradicts itself."""


class Forbidden(ServiceError):
    """The caller's API key does not permit this; another key of the account may."""


class NotFound(ServiceError):
    """The object does not exist, or belongs to another account; the caller cannot tell which."""


class EndpointDisabled(ServiceError):
    """The endpoint is disabled and must not start."""


class Conflict(ServiceError):
    """Another object, or the state of this one, conflicts with the request."""


class Unprocessable(ServiceError):
    """The request is well formed, but a rule or a limit forbids it."""


class Locked(ServiceError):
    """Unfinished operations, or other requests, conflict with this one. Nothing was done; it is
    safe to try again."""

    def __init__(
        self,
        message: str = (
            "project already has running conflicting operations, "
            "scheduling of new ones is prohibited"
        ),
    ) -> None:
        super().__init__(message)


class TooManyAtOnce(ServiceError):
    """Other requests of the account hold a lock that this one needs. Nothing was done; it is safe
    to try again."""


class HostFull(ServiceError):
    """The host has no room for new branches. It is safe to try again later."""


class OutsideBounds(ServiceError):
    """Consumption at that granularity is not stored for a time so long ago."""


class PasswordNotStored(ServiceError):
    """The role's password is not stored, so it cannot be revealed."""


def refused_field(field: str, words: str, *, code: str = "") -> Unprocessable:
    """The refusal of one field, whose name precedes the words in the message."""
    return Unprocessable(f"{field}: {words}", code=code, errors=[FieldError(field, words)])


def refuse_fields(found: Iterable[FieldError]) -> None:
    """Raises Unprocessable for all of these fields, with the message about the first one."""
    errors = list(found)
    if errors:
        raise Unprocessable(f"{errors[0].field}: {errors[0].message}", errors=errors)


def taken_name(kind: str, name: str, field: str = "name") -> FieldError:
    """What is wrong with a name that another branch, role or database has. `kind` says which."""
    return FieldError(field, f'there is a {kind} called "{name}" already')


@contextmanager
def locking_within_bound(otherwise: ServiceError) -> Iterator[None]:
    """A context for a statement that only locks a row. The caller's transaction must end with the
    exception that this raises.

    Raises `otherwise` if other transactions hold the row for longer than the statement timeout, or
    if there is a deadlock. The database works in these cases, and a later request may succeed.
    """
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled | DeadlockDetected):
            raise otherwise from error
        raise
