"""The session: the user's API key and name, encrypted in a cookie, and nowhere else."""

import base64
import json
import logging
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.middleware.csrf import rotate_token

from console import ended_sessions

log = logging.getLogger(__name__)

# In a session's content: what it is known by after its end.
ID = "id"


@dataclass(frozen=True)
class Account:
    """Who is signed in, and what the pages may offer them."""

    name: str
    plan: str
    # The only one that the key may see; "" where it may see all.
    project_id: str = ""
    # Not all servers of this API keep a record of who did what, or send it on.
    has_activity: bool = True
    has_webhooks: bool = True


class SessionStore(SessionBase):
    """Django's session, kept whole in the cookie; its key is the encrypted content itself."""

    def load(self) -> dict[str, Any]:
        token = self.session_key or ""
        try:
            text = _fernet().decrypt(token.encode(), ttl=settings.SESSION_COOKIE_AGE)
            data = json.loads(text)
        except (InvalidToken, ValueError):
            data = None
        if not isinstance(data, dict) or _is_over(data):
            # Too old, signed out of, or not of our making: begin afresh.
            self.create()
            return {}
        return data

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


def sign_in(request: HttpRequest, *, key: str, account: Account) -> None:
    _end(request)
    request.session[ID] = secrets.token_urlsafe(16)
    request.session["api_key"] = key
    request.session["account"] = asdict(account)
    # What a form was given before belongs to whoever sat here before.
    rotate_token(request)


def sign_out(request: HttpRequest) -> None:
    """Also for copies of the cookie, wherever they are."""
    _end(request)
    request.session.flush()
    rotate_token(request)


def _is_over(data: dict[str, Any]) -> bool:
    """Signed out of, or a key without an id, which could not be."""
    return ended_sessions.has_ended(data[ID]) if ID in data else "api_key" in data


def _end(request: HttpRequest) -> None:
    if ID not in request.session:
        return
    try:
        ended_sessions.end(request.session[ID])
    except (OSError, ImproperlyConfigured):
        # This browser is signed out all the same.
        log.exception("a copy of the session's cookie can still be used")


def has_ended(request: HttpRequest) -> bool:
    """Whether the session that a long answer began with has been signed out of meanwhile."""
    return _is_over(dict(request.session.items()))


def api_key(request: HttpRequest) -> str:
    """The signed-in user's key, or "" when nobody is signed in."""
    key = request.session.get("api_key", "")
    return key if isinstance(key, str) else ""


def account(request: HttpRequest) -> dict[str, Any]:
    """Template context: who is signed in."""
    signed_in = hasattr(request, "session") and bool(api_key(request))
    if not signed_in:
        return {"account": None}
    # A session may be from before an upgrade, and hold less.
    return {"account": asdict(Account(name="", plan="")) | request.session.get("account", {})}


def _fernet() -> Fernet:
    derived = HKDF(SHA256(), length=32, salt=None, info=b"perch console session").derive(
        settings.SECRET_KEY.encode()
    )
    return Fernet(base64.urlsafe_b64encode(derived))
