"""Encrypts values that are stored and must be decrypted again, with keys derived from
PERCH_SECRET_KEY.

Each purpose has its own key, so a value that was encrypted for one purpose cannot be decrypted for
another.
"""

import base64
import hashlib

from cryptography.fernet import Fernet
from django.conf import settings


def encrypt(text: str, *, purpose: str) -> str:
    return _fernet(purpose).encrypt(text.encode()).decode()


def decrypt(encrypted: str, *, purpose: str) -> str:
    """Raises cryptography.fernet.InvalidToken if the value was encrypted with another
    PERCH_SECRET_KEY or for another purpose."""
    return _fernet(purpose).decrypt(encrypted.encode()).decode()


def _fernet(purpose: str) -> Fernet:
    digest = hashlib.sha256(f"{purpose}:{settings.SECRET_KEY}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
