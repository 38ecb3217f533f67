"""Role passwords: made, verified by SCRAM-SHA-256, kept encrypted for reveal_password."""

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
PURPOSE = "role passwords"
ALPHABET = string.ascii_letters + string.digits


def new_password() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(24))


def scram_verifier(password: str) -> str:
    """What Postgres itself would store: SCRAM-SHA-256$<iterations>:<salt>$<stored>:<server>."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


def set_password(role: Role, password: str, *, store: bool) -> None:
    """From now on this one holds, whatever SQL has set in the compute. The caller saves it."""
    role.password_is_newer = True
    role.valid_until = None
    role.verifier = scram_verifier(password)
    role.encrypted_password = encrypt(password) if store else ""


def give_new_passwords(roles: Iterable[Role], *, store: bool) -> list[Role]:
    """Give each that may log in by one a password that it had nowhere else, in clear with it for
    the answer; returns those. The caller saves them."""
    given = [role for role in roles if role.deleted_at is None and role.verifier]
    for role in given:
        role.password = new_password()
        set_password(role, role.password, store=store)
    return given


def encrypt(password: str) -> str:
    return encryption.encrypt(password, purpose=PURPOSE)


def decrypt(encrypted: str) -> str:
    """Raises cryptography.fernet.InvalidToken, as `controlplane.encryption` says."""
    return encryption.decrypt(encrypted, purpose=PURPOSE)
