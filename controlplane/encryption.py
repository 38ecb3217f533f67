"""Encrypts what must be kept and read again, with keys made of PERCH_SECRET_KEY.

Each purpose has a key of its own: what is kept for one is of no use as another.
"""

import base64
import hashlib

from cryptography.fernet import Fernet
from django.conf import settings


def encrypt(text: str, *, purpose: str) -> str:
    return _fernet(purpose).encrypt(text.encode()).decode()


def decrypt(encrypted: str, *, purpose: str) -> str:
    """Raises cryptography.fernet.InvalidToken for what another PERCH_SECRET_KEY has encrypted."""
    return _fernet(purpose).decrypt(encrypted.encode()).decode()


def _fernet(purpose: str) -> Fernet:
    digest = hashlib.sha256(f"{purpose}:{settings.SECRET_KEY}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
