"""The session: whom this browser is signed in as, encrypted in a cookie, and nowhere else.

It may hold several sign-ins, to several servers or with several keys, one of which is the present
one. A sign-in has an id of its own, by which it can be ended for every copy of the cookie.
"""

import base64
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.middleware.csrf import rotate_token
from django.utils.crypto import salted_hmac

from console import ended_sessions
from console.servers import Server, find_server

log = logging.getLogger(__name__)

# In a session's content.
SIGN_INS, PRESENT = "sign_ins", "present"
# Browsers keep 4,096 bytes of a cookie; encrypted, and in base64, the content is longer by half.
MOST_BYTES = 2400
LONGEST_NAME = 60
# The cookie is renewed when it has grown old by this part of the time that it may lie idle.
RENEWED_AFTER = 1 / 20


@dataclass(frozen=True)
class Account:
    """Who is signed in, and what the pages may offer them."""

    name: str = ""
    plan: str = ""
    # The only one that the key may see; "" where it may see all.
    project_id: str = ""
    # It changes nothing, and sees no password.
    read_only: bool = False
    # When the key ends, as ISO 8601 has it; "" for never, or where the server does not say.
    ends: str = ""
    # Not all servers of this API keep a record of who did what, or send it on.
    has_activity: bool = True
    has_webhooks: bool = True
    # What only Perch has: queries over HTTP, and the status of the service.
    is_perch: bool = False
    # Of the service itself.
    is_operator: bool = False


@dataclass(frozen=True)
class SignIn:
    key: str
    account: Account
    # By its name among those that the operator allows.
    server: str = ""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    # When it was begun, as time.time() has it.
    since: float = field(default_factory=time.time)

    @classmethod
    def read(cls, data: Any) -> "SignIn":
        """Raises KeyError or TypeError for what no version of the console has made."""
        known = {one.name for one in fields(Account)}
        # A session may be from before an upgrade, and hold less, or from after, and hold more.
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
        """What tells that two sign-ins are with the same key, at the same server."""
        return f"{self.server} {self.key}"

    @property
    def mark(self) -> str:
        """By which a page knows whom it was made for, and nobody the key: the same for all
        sign-ins with it."""
        return salted_hmac("perch sign-in", self.secret, algorithm="sha256").hexdigest()[:20]

    @property
    def ends_at(self) -> datetime | None:
        """When the key does, where that is known."""
        return datetime.fromisoformat(self.account.ends) if self.account.ends else None

    @property
    def shown_server(self) -> Server:
        found = find_server(self.server)
        assert found is not None, "a sign-in whose server is gone has ended"
        return found


class SessionStore(SessionBase):
    """Django's session, kept whole in the cookie; its key is the encrypted content itself."""

    def load(self) -> dict[str, Any]:
        token = self.session_key or ""
        try:
            text = _fernet().decrypt(token.encode(), ttl=settings.SESSION_COOKIE_AGE)
            data = json.loads(text)
            found = [SignIn.read(one) for one in data.get(SIGN_INS, [])]
        except (InvalidToken, ValueError, AttributeError, KeyError, TypeError):
            # Idle for too long, not of our making, or from before sessions were like this.
            self.create()
            return {}
        # Where the present one has ended, nobody is present: no page may be shown as another. The
        # cookie may go on naming it: of two answers the later one's is kept, so that only what
        # changes who is signed in, and `keep_awake`, writes one.
        data[SIGN_INS] = [asdict(one) for one in found if not one.has_ended]
        return dict(data)

    def create(self) -> None:
        self.modified = True

    def save(self, must_create: bool = False) -> None:
        text = json.dumps(dict(self.items()), separators=(",", ":"))
        self._session_key = _fernet().encrypt(text.encode()).decode()
        self.modified = True

    def exists(self, session_key: str) -> bool:
        return False

    def delete(self, session_key: str | None = None) -> None:
        self._session_key = ""
        self._session_cache: dict[str, Any] = {}
        self.modified = True

    def cycle_key(self) -> None:
        self.save()

    @classmethod
    def clear_expired(cls) -> None:
        pass


def sign_ins(request: HttpRequest) -> list[SignIn]:
    """All of this browser, the oldest first."""
    return [SignIn.read(data) for data in request.session.get(SIGN_INS, [])]


def present(request: HttpRequest) -> SignIn | None:
    """The one that pages are shown as; None when nobody is signed in."""
    chosen = request.session.get(PRESENT)
    return next((one for one in sign_ins(request) if one.id == chosen), None)


def sign_in(request: HttpRequest, *, key: str, account: Account, server: str = "") -> None:
    """Beside what this browser is signed in as already; with the same key anew."""
    short = replace(account, name=account.name[:LONGEST_NAME], plan=account.plan[:LONGEST_NAME])
    new = SignIn(key, short, server)
    known = sign_ins(request)
    _end(one for one in known if one.secret == new.secret)
    kept = [*(one for one in known if one.secret != new.secret), new]
    while len(kept) > 1 and len(json.dumps([asdict(one) for one in kept])) > MOST_BYTES:
        # No cookie is that long: the oldest makes room.
        _end(kept[:1])
        del kept[0]
    _keep(request, kept, new.id)


def switch(request: HttpRequest, sign_in_id: str) -> SignIn | None:
    """Make another one the present one; None where there is no such."""
    kept = sign_ins(request)
    chosen = next((one for one in kept if one.id == sign_in_id), None)
    if chosen is not None:
        _keep(request, kept, chosen.id)
    return chosen


def sign_out(request: HttpRequest, *, of_all: bool = False, everywhere: bool = False) -> bool:
    """End the present sign-in, for copies of the cookie too; `of_all`, every one of this browser;
    `everywhere`, all that were begun with the present one's key, in whatever browser.

    Whether that holds elsewhere: this browser is signed out in any case."""
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
        # Nobody is present: who goes on as somebody else says so.
        _keep(request, [one for one in known if one not in over], "")
    return holds


def keep_awake(request: HttpRequest) -> None:
    """Begin the time anew that the session may lie idle. For what is answered at once: the cookie
    is as it was asked with, and another tab may have switched since."""
    token = request.session.session_key
    if not token or present(request) is None:
        return
    age = time.time() - _fernet().extract_timestamp(token.encode())
    if age > settings.SESSION_COOKIE_AGE * RENEWED_AFTER:
        request.session.modified = True


def has_ended(request: HttpRequest) -> bool:
    """Whether the sign-in that a long answer began with has ended meanwhile."""
    one = present(request)
    return one is None or one.has_ended


def account(request: HttpRequest) -> dict[str, Any]:
    """Template context: who is signed in, and whom one may switch to."""
    if not hasattr(request, "session"):
        return {"account": None}
    now, known = present(request), sign_ins(request)
    others = [one for one in known if now is None or one.id != now.id]
    return {
        "account": asdict(now.account) if now else None,
        "sign_in": now,
        "other_sign_ins": others,
    }


def _keep(request: HttpRequest, kept: list[SignIn], chosen: str) -> None:
    request.session[SIGN_INS] = [asdict(one) for one in kept]
    request.session[PRESENT] = chosen
    # What a form was given before belongs to whoever was present then.
    rotate_token(request)


def _end(over: Iterable[SignIn]) -> bool:
    """Whether all of them have ended for copies of the cookie too."""
    # Each is tried, whatever becomes of the one before.
    written = [_is_written(partial(ended_sessions.end, one.id)) for one in over]
    return all(written)


def _is_written(end: Callable[[], None]) -> bool:
    try:
        end()
    except (OSError, ImproperlyConfigured):
        log.exception("a copy of the session's cookie can still be used")
        return False
    return True


def _fernet() -> Fernet:
    derived = HKDF(SHA256(), length=32, salt=None, info=b"perch console session").derive(
        settings.SECRET_KEY.encode()
    )
    return Fernet(base64.urlsafe_b64encode(derived))
