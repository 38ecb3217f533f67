"""What can go wrong between the console and the management API, in words a user reads."""


class APIError(Exception):
    """The management API refused, failed or did not answer."""

    title = "The management API refused"
    advice = ""
    # The same to who has asked for no change, where that makes a difference.
    advice_to_readers = ""
    # Whether the API has said so itself, and not something on the way to it.
    is_told = True
    # The API's own message is all that a user needs to read.
    speaks_for_itself = False
    # The status with which the console's own page tells of it.
    page_status = 502

    def __init__(self, message: str, *, status: int | None = None, request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.request_id = request_id


class Refused(APIError):
    """A 4xx answer that has no class of its own below."""

    page_status = 400


class BadRequest(Refused):
    """400: the API could not make sense of the request."""

    title = "That request was not understood"
    speaks_for_itself = True


class Unauthorized(Refused):
    """401: the key is missing, wrong or revoked."""

    title = "Sign in again"
    page_status = 401


class Forbidden(Refused):
    """403: the key may not do this."""

    title = "This API key may not do that"
    advice = "Sign in with another key, or ask the owner of the account."
    page_status = 403


class NotFound(Refused):
    """404: no such thing, or not this account's."""

    title = "There is nothing here"
    advice = "It may have been deleted, or it may belong to another account."
    page_status = 404


class NotOffered(Refused):
    """404 or 405 where a whole part of the API is asked for: not all its servers have them all."""

    title = "This server does not have that"
    advice = "Other servers of this API do."
    page_status = 404


class NotAcceptable(Refused):
    """406: the endpoint may not start, because it is stopped."""

    title = "Not in this state"
    speaks_for_itself = True


class Conflict(Refused):
    """409: the name or the branch is taken."""

    title = "That is already taken"
    speaks_for_itself = True
    page_status = 409


class Unprocessable(Refused):
    """422: understood, but not allowed: a limit or a rule."""

    title = "That is not allowed"
    speaks_for_itself = True
    page_status = 422


class Locked(Refused):
    """423: unfinished operations stand in the way."""

    title = "Still busy with earlier operations"
    advice = "Nothing was changed. Try again in a moment."
    page_status = 423


class TooManyRequests(Refused):
    """429: the API asks for a pause."""

    title = "Too many requests"
    advice = "Wait a little, then try again."
    page_status = 429


class OutOfDate(APIError):
    """The console's own: the page that asks is older than the sign-in."""

    title = "Nothing was sent yet"
    advice = "Look whether it is still what you want, and send it once more."
    page_status = 409


class AnotherSignIn(APIError):
    """The console's own: the page that asks was made for somebody else."""

    title = "You have signed in with another key"
    page_status = 409


class ServerError(APIError):
    """5xx: the API itself failed."""

    title = "The management API failed"
    advice = "Try again in a moment."


class NonsenseAnswer(APIError):
    """The answer was not what this API says: not JSON, or without what must be in it."""

    title = "The management API gave an answer that makes no sense"
    advice = "Is MANAGEMENT_API_URL the address of a management API, with /api/v2 at its end?"


class Unreachable(APIError):
    """No connection to the API."""

    title = "The management API cannot be reached"
    advice = "Nothing is lost. Try again once it is running."
    page_status = 503


class BrokenOff(Unreachable):
    """The connection ended before the answer; what was asked for may have happened."""

    title = "The connection to the management API broke off"
    advice = "What you asked for may have happened: look before you try again."
    advice_to_readers = "Nothing is lost. Try again in a moment."


class TooSlow(Unreachable):
    """The API did not answer in time; what was asked for may still happen."""

    title = "The management API is taking too long"
    advice = "What you asked for may still happen: look before you try again."
    advice_to_readers = "Nothing is lost. Try again in a moment."
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


def error_class(status: int) -> type[APIError]:
    """The class for an answer that is not a success."""
    if status >= 500:
        return ServerError
    if status >= 400:
        return BY_STATUS.get(status, Refused)
    return NonsenseAnswer
