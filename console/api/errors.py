"""What can go wrong between the console and the management API, in words for users."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of a request. `field` is a path in the body, with dots, or the
    name of a parameter."""

    field: str
    message: str


@dataclass(eq=False)
class APIError(Exception):
    """The management API refused, failed or did not answer."""

    title = "The management API refused"
    advice = ""
    # The advice if the request to the API would have changed nothing, if it differs.
    advice_to_readers = ""
    # False if the answer did not come from the API itself but from something in front of it.
    is_told = True
    # True if the API's own message is all that a user needs to read.
    speaks_for_itself = False
    # The HTTP status of the console's page that shows this error.
    page_status = 502

    message: str
    _: KW_ONLY
    status: int | None = None
    request_id: str = ""
    # The fields of the request that are at fault, if the API says so.
    fields: Sequence[FieldError] = ()


class Failure(APIError):
    """Any error but Unauthorized, which concerns the whole page. A part of a page catches these."""


class Refused(Failure):
    """A 4xx answer that has no class of its own below."""

    page_status = 400


class BadRequest(Refused):
    """400: the API could not make sense of the request."""

    title = "Invalid request"
    speaks_for_itself = True


class Unauthorized(APIError):
    """401: the key is missing, wrong or revoked."""

    title = "Sign in again"
    page_status = 401


class Forbidden(Refused):
    """403: the key may not do this."""

    title = "This API key may not do that"
    advice = "Sign in with another key, or ask the owner of the account."
    page_status = 403


class NotFound(Refused):
    """404: the thing does not exist, or belongs to another account."""

    title = "Not found"
    advice = (
        "Check the spelling of its id. It may have been deleted, or belong to another account or "
        "server."
    )
    page_status = 404


class NotOffered(Refused):
    """404 or 405 for a whole part of the API: not every server of this API has every part."""

    title = "Not supported by this server"
    advice = "Other servers of this API support it."
    page_status = 404


class NotAcceptable(Refused):
    """406: the endpoint may not start, because it is stopped."""

    title = "Not possible in this state"
    speaks_for_itself = True


class Conflict(Refused):
    """409: the name or the branch is taken."""

    title = "Already exists"
    speaks_for_itself = True
    page_status = 409


class Unprocessable(Refused):
    """422: the API understood the request, but a limit or a rule forbids it."""

    title = "Not allowed"
    speaks_for_itself = True
    page_status = 422


class Locked(Refused):
    """423: earlier operations must finish first."""

    title = "Other operations are in progress"
    advice = "Nothing was changed. Try again in a moment."
    page_status = 423


class QuotaUsedUp(Refused):
    """423 with a code such as ACTIVE_TIME_QUOTA_EXCEEDED: the project may use no more."""

    title = "A quota of the project is used up"
    advice = "Raise it in the project's settings, or wait for the next period."
    page_status = 423


class TooManyRequests(Refused):
    """429: the API asks the client to wait."""

    title = "Too many requests"
    advice = "Wait a moment, then try again."
    page_status = 429


class OutOfDate(Failure):
    """Raised by the console: the page that sent the request was made before the last sign-in."""

    title = "Not sent"
    advice = "Check the form and send it again."
    page_status = 409


class RequestShown(Failure):
    """Raised by the console instead of sending a request that the user only wants to see. `address`
    is below the server's; `body` is empty if the request has none."""

    title = "Not sent"
    page_status = 400

    def __init__(self, method: str, address: str, body: Mapping[str, Any]) -> None:
        super().__init__("The request was not sent, because it was to be shown.")
        self.method, self.address, self.body = method, address, body


class AnotherSignIn(Failure):
    """Raised by the console: the page that sent the request was made for another user."""

    title = "You have signed in with another key"
    page_status = 409


class ServerError(Failure):
    """5xx: the API itself failed."""

    title = "The management API failed"
    advice = "Try again in a moment."


class NonsenseAnswer(Failure):
    """The answer is not what this API promises: it is not JSON, or lacks a required field."""

    title = "The management API sent an unexpected response"
    advice = "Is MANAGEMENT_API_URL the address of a management API, with /api/v2 at its end?"


class Unreachable(Failure):
    """No connection to the API could be made."""

    title = "Cannot reach the management API"
    advice = "Nothing was changed. Try again when it is running."
    page_status = 503


class BrokenOff(Unreachable):
    """The connection ended before the answer was complete; the request may have taken effect."""

    title = "Lost the connection to the management API"
    advice = "The change may have been made. Check before you try again."
    advice_to_readers = "Try again in a moment."


class TooSlow(Unreachable):
    """The API did not answer in time; the request may still take effect."""

    title = "The management API did not respond in time"
    advice = "The change may still be made. Check before you try again."
    advice_to_readers = "Try again in a moment."
    page_status = 504


BY_STATUS: dict[int, type[APIError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    406: NotAcceptable,
    409: Conflict,
    422: Unprocessable,
    423: Locked,
    429: TooManyRequests,
}


QUOTA_EXCEEDED = "_QUOTA_EXCEEDED"


def error_class(status: int, code: str = "") -> type[APIError]:
    """Return the class of error for the status and the code of an answer that is not a success."""
    if status == 423 and code.endswith(QUOTA_EXCEEDED):
        return QuotaUsedUp
    if status >= 500:
        return ServerError
    if status >= 400:
        return BY_STATUS.get(status, Refused)
    return NonsenseAnswer
