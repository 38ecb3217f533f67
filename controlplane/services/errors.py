"""The errors for which a request is refused. Their messages are shown to the caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, QueryCanceled

# The operations layer raises RegionAway; the API handles it like the errors here.
from controlplane.operations.scheduling import RegionAway as RegionAway


class ServiceError(Exception):
    """A request is refused; nothing was changed. `code` is for programs, often ""."""

    code = ""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code


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


class RegionFull(ServiceError):
    """The region's host has no room for new branches. It is safe to try again later."""


class PasswordNotStored(ServiceError):
    """The role's password is not stored, so it cannot be revealed."""


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
