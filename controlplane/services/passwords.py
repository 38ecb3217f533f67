"""Role passwords: generate them, compute their SCRAM-SHA-256 verifiers, and encrypt them for
reveal_password."""

import base64
import hashlib
import hmac
import os
import secrets
import string
from collections.abc import Iterable

from controlplane import encryption
from controlplane.models import Role

ITERATIONS = 4096  # Postgres's own scram_iterations
ALPHABET = string.ascii_letters + string.digits


def new_password() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(24))


def scram_verifier(password: str) -> str:
    """The verifier that Postgres would store for the password, with a random salt:
    SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


def set_password(role: Role, password: str, *, store: bool) -> None:
    """Set the role's password, without saving the role. It replaces any that SQL has set in the
    compute. If `store`, it is also kept encrypted."""
    role.password_is_newer = True
    role.valid_until = None
    role.verifier = scram_verifier(password)
    role.encrypted_password = encrypt(password) if store else ""


def give_new_passwords(roles: Iterable[Role], *, store: bool) -> list[Role]:
    """Give a new password to each role that has one, also in plain text in `role.password` for the
    answer. Returns these roles; the caller saves them."""
    given = [role for role in roles if role.deleted_at is None and role.verifier]
    for role in given:
        role.password = new_password()
        set_password(role, role.password, store=store)
    return given


def encrypt(password: str) -> str:
    return encryption.encrypt(password, purpose=encryption.ROLE_PASSWORDS)


def decrypt(encrypted: str) -> str:
    """Decrypt what `encrypt` has returned. Raises cryptography.fernet.InvalidToken, as
    `controlplane.encryption` says."""
    return encryption.decrypt(encrypted, purpose=encryption.ROLE_PASSWORDS)
