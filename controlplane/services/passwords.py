"""Role passwords: made, verified by SCRAM-SHA-256, kept encrypted for reveal_password."""

import base64
import hashlib
import hmac
import os
import secrets
import string

from controlplane import encryption

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


def encrypt(password: str) -> str:
    return encryption.encrypt(password, purpose=PURPOSE)


def decrypt(encrypted: str) -> str:
    """Raises cryptography.fernet.InvalidToken, as `controlplane.encryption` says."""
    return encryption.decrypt(encrypted, purpose=PURPOSE)
