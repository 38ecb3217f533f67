"""Checks a clear-text password against a role's verifier. This is for clients that cannot use SCRAM
with the proxy: they name their endpoint in the password, or they speak HTTP."""

import hashlib
import hmac
import stringprep
import unicodedata

from controlplane.proxy.scram import Verifier, parse_verifier

# A check costs as many hashes as the verifier's iteration count, which a role's owner can choose.
# This many take half a second, and are more than anybody recommends.
MOST_ITERATIONS = 1_000_000

_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def check_password(verifier: Verifier | str | None, password: str | bytes) -> bool:
    """Returns whether the verifier was made from this password.

    The verifier is a `scram.Verifier` or text as in `pg_authid.rolpassword`. For any other text, or
    None, the result is False. For a mock (`scram.mock_verifier`) it is False too, but the check
    takes as long as for a real verifier.

    Computes as many hashes as the verifier has iterations, which usually takes milliseconds. The
    hashing lets other threads run, but this must not be called on the event loop.
    """
    if isinstance(verifier, str):
        verifier = parse_verifier(verifier)
    if verifier is None or verifier.iterations > MOST_ITERATIONS:
        return False
    prepared = _prepared(password)
    salted = hashlib.pbkdf2_hmac("sha256", prepared, verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    fits = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
    fits &= hmac.compare_digest(server_key, verifier.server_key)
    return fits and not verifier.is_mock


def _prepared(password: str | bytes) -> bytes:
    """Prepares the password as Postgres clients do before hashing: by SASLprep (RFC 4013), or
    unchanged if SASLprep prohibits what the password contains."""
    raw = password if isinstance(password, bytes) else password.encode(errors="surrogateescape")
    if raw.isascii():
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    return prepared.encode() if prepared and _is_allowed(prepared) else raw


def _is_allowed(prepared: str) -> bool:
    if any(is_in(character) for character in prepared for is_in in _PROHIBITED):
        return False
    if not any(stringprep.in_table_d1(character) for character in prepared):
        return True
    # A string with right-to-left characters must start and end with one, and contain no
    # left-to-right ones (RFC 3454, section 6).
    return (
        stringprep.in_table_d1(prepared[0])
        and stringprep.in_table_d1(prepared[-1])
        and not any(stringprep.in_table_d2(character) for character in prepared)
    )
