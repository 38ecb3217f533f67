"""The session: this browser's sign-ins. It is stored only in an encrypted cookie.

A session may hold several sign-ins, to several servers or with several keys. One of them is the
present one. Each sign-in has an id, by which it can be ended for every copy of the cookie."""

import base64
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.middleware.csrf import rotate_token
from django.utils.crypto import salted_hmac

from console.api.transport import Server, find_server
from console.sign_in import ended_sessions

log = logging.getLogger(__name__)

# Keys in a session's content.
SIGN_INS, PRESENT = "sign_ins", "present"
# Bytes of the content. Browsers keep 4,096 bytes of a cookie, and encryption and base64 make the
# content half as long again.
MAX_COOKIE_BYTES = 2400
# Characters of an account's name: at Perch, all.
MAX_LENGTH = 64
# The sign-ins of a key at once, those of all keys of an account that can make keys, and seconds
# after which there may be another one. Each leaves a file when it ends (`ended_sessions`).
MAX_SIGN_INS_OF_KEY, MAX_SIGN_INS, SIGN_IN_INTERVAL = 100, 1000, 60.0
# The keys and accounts whose sign-ins are remembered.
MAX_REMEMBERED = 10_000
# A used cookie is renewed at an age of this fraction of the time that a session may be idle.
RENEWAL_FRACTION = 1 / 20


@dataclass(frozen=True)
class Account:
    """The account that is signed in, and what the pages may offer it."""

    name: str = ""
    plan: str = ""
    # The only project that the key may see; "" for every project of the account.
    project_id: str = ""
    # The key changes nothing, and sees no password.
    read_only: bool = False
    # When the key expires, in ISO 8601; "" for never, or if the server does not say.
    ends: str = ""
    # Whether the server has events, and webhooks; not all servers of this API do.
    has_activity: bool = True
    has_webhooks: bool = True
    # Whether the server is Perch, which also has queries over HTTP and the status of the service.
    is_perch: bool = False
    # Whether the account is one of those that run the service.
    is_operator: bool = False
    # The id of the own key; None if the server does not say.
    key_id: int | None = None


@dataclass(frozen=True)
class SignIn:
    key: str
    account: Account
    # The server's name among those that the operator has named.
    server: str = ""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    # When it began, a time of time.time().
    since: float = field(default_factory=time.time)

    @classmethod
    def read(cls, data: Any) -> "SignIn":
        """Read a sign-in. Raises KeyError or TypeError if no version of the console wrote it."""
        known = {one.name for one in fields(Account)}
        # A session from an older version has fewer fields, one from a newer version has more.
        account = {name: value for name, value in data["account"].items() if name in known}
        return cls(data["key"], Account(**account), data["server"], data["id"], data["since"])

    @property
    def has_ended(self) -> bool:
        return (
            find_server(self.server) is None
            or ended_sessions.has_ended(self.id)
            or ended_sessions.key_has_ended(self.secret, since=self.since)
        )

    @property
    def secret(self) -> str:
        """Identifies the key and its server: equal for two sign-ins with the same key."""
        return f"{self.server} {self.key}"

    @property
    def whose(self) -> str:
        """Identifies the account and its server; only Perch is known to name each account."""
        return f"{self.server} {self.account.name}" if self.account.is_perch else self.secret

    @property
    def mark(self) -> str:
        """Identifies, in a page, the user for whom it was made, without revealing the key. It is
        the same for all sign-ins with the key."""
        return _marks(self.secret)[0]

    def is_marked(self, mark: str) -> bool:
        """Whether a page with this mark was made for this user, also before the secret key was
        replaced."""
        return mark in _marks(self.secret)

    @property
    def ends_at(self) -> datetime | None:
        """When the key expires; None if never, or if not known."""
        return datetime.fromisoformat(self.account.ends) if self.account.ends else None

    @property
    def shown_server(self) -> Server:
        found = find_server(self.server)
        assert found is not None, "a sign-in whose server is gone has ended"
        return found


class SessionStore(SessionBase):
    """Django's session, stored in the cookie as a whole: its key is the encrypted content."""

    def load(self) -> dict[str, Any]:
        token = self.session_key or ""
        try:
            text = _fernet().decrypt(token.encode(), ttl=settings.SESSION_COOKIE_AGE)
            data = json.loads(text)
            found = [SignIn.read(one) for one in data.get(SIGN_INS, [])]
        except (InvalidToken, ValueError, AttributeError, KeyError, TypeError):
            # Idle for too long, not made by this console, or made by a version before this format.
            self.create()
            return {}
        # If the present sign-in has ended, nobody is signed in: no page may be shown as another
        # user. The cookie still names it, because it is not rewritten here: the browser keeps the
        # cookie of the last answer, so only changes of the sign-in, and `keep_awake`, write one.
        data[SIGN_INS] = [one for one in found if not one.has_ended]
        return dict(data)

    def create(self) -> None:
        self.modified = True

    def save(self, must_create: bool = False) -> None:
        text = json.dumps(dict(self.items()), separators=(",", ":"), default=asdict)
        self._session_key = _fernet().encrypt(text.encode()).decode()
        self.modified = True

    def delete(self, session_key: str | None = None) -> None:
        self._session_key = ""
        self._session_cache: dict[str, Any] = {}
        self.modified = True


def sign_ins(request: HttpRequest) -> list[SignIn]:
    """Return all sign-ins of this browser, the oldest first."""
    return list(request.session.get(SIGN_INS, []))


def present(request: HttpRequest) -> SignIn | None:
    """Return the sign-in that pages are shown for; None if nobody is signed in."""
    chosen = request.session.get(PRESENT)
    return next((one for one in sign_ins(request) if one.id == chosen), None)


def present_account(request: HttpRequest) -> Account:
    """Return the account that pages are shown for; one of which nothing is known if nobody is
    signed in."""
    sign_in = present(request)
    return sign_in.account if sign_in else Account()


# When each key and account may have all its sign-ins again, a time of time.monotonic(); the latest
# to sign in is last.
_restored_at: dict[str, float] = {}


def _may_begin(new: SignIn) -> bool:
    """Count a sign-in of the key and its account. Returns False if one has had too many. A key that
    can make no others does not count for its account: it could keep the others from signing in."""
    now = time.monotonic()
    most = {new.mark: MAX_SIGN_INS_OF_KEY}
    if not (new.account.project_id or new.account.read_only):
        most[new.whose] = MAX_SIGN_INS
    restored = {one: max(_restored_at.get(one, now), now) + SIGN_IN_INTERVAL for one in most}
    if any(restored[one] > now + most[one] * SIGN_IN_INTERVAL for one in most):
        return False
    for one, at in restored.items():
        _restored_at.pop(one, None)
        if len(_restored_at) >= MAX_REMEMBERED:
            for passed in [other for other, then in _restored_at.items() if then <= now]:
                del _restored_at[passed]
        if len(_restored_at) >= MAX_REMEMBERED:
            del _restored_at[next(iter(_restored_at))]
        _restored_at[one] = at
    return True


def sign_in(
    request: HttpRequest, *, key: str, account: Account, server: str = "", by_link: bool = False
) -> bool:
    """Add a sign-in to those of this browser, and make it the present one. It replaces an earlier
    one with the same key. Returns False, and does nothing, if the key or its account signs in too
    often, which a one-time link does not count for."""
    short = replace(account, name=account.name[:MAX_LENGTH], plan=account.plan[:MAX_LENGTH])
    new = SignIn(key, short, server)
    if not (by_link or _may_begin(new)):
        return False
    known = sign_ins(request)
    _end(one for one in known if one.secret == new.secret)
    kept = [*(one for one in known if one.secret != new.secret), new]
    while len(kept) > 1 and len(json.dumps(kept, default=asdict)) > MAX_COOKIE_BYTES:
        # The cookie would be too long, so the oldest sign-in is ended.
        _end(kept[:1])
        del kept[0]
    _keep(request, kept, new.id)
    return True


def switch(request: HttpRequest, sign_in_id: str) -> SignIn | None:
    """Make another sign-in the present one. Returns it; None if there is no such sign-in."""
    kept = sign_ins(request)
    chosen = next((one for one in kept if one.id == sign_in_id), None)
    if chosen is not None:
        _keep(request, kept, chosen.id)
    return chosen


def sign_out(request: HttpRequest, *, of_all: bool = False, everywhere: bool = False) -> bool:
    """End the present sign-in, for copies of the cookie too. `of_all` ends every sign-in of this
    browser, `everywhere` every sign-in with the present one's key in any browser. Returns False if
    a copy of the cookie can still be used, as the end could not be stored. This browser is signed
    out in any case."""
    left, known = present(request), sign_ins(request)
    holds = True
    if left is not None and everywhere:
        holds = _is_written(partial(ended_sessions.end_key, left.secret))
    over = [one for one in known if of_all or (left is not None and one.id == left.id)]
    holds = _end(over) and holds
    if len(over) == len(known):
        request.session.flush()
        rotate_token(request)
    else:
        # No sign-in is the present one until the user chooses one.
        _keep(request, [one for one in known if one not in over], "")
    return holds


def keep_awake(request: HttpRequest) -> None:
    """Start again the time for which the session may be idle. For requests that are answered at
    once: the cookie is sent back as it came, and another tab may have changed it meanwhile."""
    token = request.session.session_key
    if not token or present(request) is None:
        return
    age = time.time() - _fernet().extract_timestamp(token.encode())
    if age > settings.SESSION_COOKIE_AGE * RENEWAL_FRACTION:
        request.session.modified = True


def account(request: HttpRequest) -> dict[str, Any]:
    """Template context: the account that is signed in, and the other sign-ins to switch to."""
    if not hasattr(request, "session"):
        return {"account": None}
    now, known = present(request), sign_ins(request)
    others = [one for one in known if now is None or one.id != now.id]
    return {
        "account": vars(now.account) if now else None,
        "sign_in": now,
        "other_sign_ins": others,
    }


def _keep(request: HttpRequest, kept: list[SignIn], chosen: str) -> None:
    request.session[SIGN_INS] = kept
    request.session[PRESENT] = chosen
    # Forms of the previous sign-in must not be accepted for this one.
    rotate_token(request)


def _end(over: Iterable[SignIn]) -> bool:
    """End sign-ins for copies of the cookie too. Returns False if one could not be ended."""
    # A list, so that each is tried even if another fails.
    written = [_is_written(partial(ended_sessions.end, one.id)) for one in over]
    return all(written)


def _is_written(end: Callable[[], None]) -> bool:
    try:
        end()
    except (OSError, ImproperlyConfigured):
        log.exception("a copy of the session's cookie can still be used")
        return False
    return True


def _marks(secret: str) -> list[str]:
    """The marks by the secret key and by those before it."""
    return [
        salted_hmac("perch sign-in", secret, secret=key, algorithm="sha256").hexdigest()[:10]
        for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]


def _fernet() -> MultiFernet:
    return _fernet_of(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


@lru_cache(maxsize=4)
def _fernet_of(*secret_keys: str) -> MultiFernet:
    keys = []
    for key in secret_keys:
        hkdf = HKDF(SHA256(), length=32, salt=None, info=b"perch console session")
        keys.append(Fernet(base64.urlsafe_b64encode(hkdf.derive(key.encode()))))
    return MultiFernet(keys)
