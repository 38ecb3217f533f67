"""Why a request cannot be served, in words that its caller reads."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError
from psycopg.errors import DeadlockDetected, QueryCanceled

# Raised below, where work is scheduled; a reason like the others to those above.
from controlplane.operations.scheduling import RegionAway as RegionAway


class ServiceError(Exception):
    """A request that is refused; nothing was changed. `code` is for programs, often ""."""

    code = ""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code


class Invalid(ServiceError):
    """The request makes no sense as it stands."""


class Forbidden(ServiceError):
    """The caller's API key is not for this; another key of the account may be."""


class NotFound(ServiceError):
    """There is no such thing, or it is another account's: the caller cannot tell which."""


class EndpointDisabled(ServiceError):
    """The endpoint may not start."""


class Conflict(ServiceError):
    """Something else is already where this would go."""


class Unprocessable(ServiceError):
    """The request is well formed, but a rule or a limit forbids it."""


class Locked(ServiceError):
    """Unfinished operations stand in the way. Nothing was done; trying again is safe."""

    def __init__(
        self,
        message: str = (
            "project already has running conflicting operations, "
            "scheduling of new ones is prohibited"
        ),
    ) -> None:
        super().__init__(message)


class TooManyAtOnce(ServiceError):
    """Other requests of the account hold what this one needs. Nothing was done; trying again is
    safe."""


class RegionFull(ServiceError):
    """The region's host has no room for anything new. Trying again later is safe."""


class PasswordNotStored(ServiceError):
    """The project keeps no passwords, so none can be revealed."""


@contextmanager
def locking_within_bound(otherwise: ServiceError) -> Iterator[None]:
    """Around a statement that only locks a row, in a transaction that ends with what this raises.

    Raises `otherwise` where others hold the row for longer than a statement may take: the database
    answers, and whoever asks again later comes in.
    """
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled | DeadlockDetected):
            raise otherwise from error
        raise
