"""What operations use to make the data of a masked branch, and the attestation that it is masked.

A project has a secret, on which masked values depend. A key that is derived from it signs the
attestations, by Ed25519, over the JSON of everything else with sorted names and no blanks.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from controlplane import clock, encryption
from controlplane.compute.host.accounts import Account
from controlplane.compute.host.filesystem import sync_tree
from controlplane.compute.masking import applying
from controlplane.compute.workshop import making
from controlplane.database.version import perch_version
from controlplane.models import Branch, Masking, Project


class AttestationInvalid(Exception):
    """An attestation is not one that the project's key has signed; the message says why."""


def is_to_be_masked(branch: Branch, source: Branch) -> bool:
    """Whether data of the source has to be masked to become the branch's."""
    return branch.masked_as == branch.id and source.masked_as is None


@contextmanager
def copying_masked(branch: Branch, source: Branch) -> Iterator[dict[str, Any]]:
    """Yields the arguments of `branch_data.create_from_parent` and `replace` by which the copy is
    masked; none if it is not to be. Raises StopFailed."""
    if not is_to_be_masked(branch, source):
        yield {}
        return
    rules = Masking.objects.get(id=branch.id).rules
    project = branch.project
    masking = applying.Masking(rules, project.masking_policy, _secret_of(project))

    def copy(parent: Path, staging: Path, account: Account) -> None:
        done = applying.copy_masked(masking, branch.id, parent, staging, account)
        attestation = _signed(project, {"branch_id": branch.id, "source_id": source.id, **done})
        Masking.objects.filter(id=branch.id).update(attestation=attestation)

    with making(branch.id):
        yield {"copy": copy, "flush": sync_tree}


def make_secret(project: Project) -> None:
    """Give the project the secret that masked values depend on, if it has none. The caller holds
    the project's lock."""
    if not project.masking_secret:
        project.masking_secret = encryption.encrypt(
            secrets.token_hex(32), purpose=encryption.MASKING_SECRETS
        )
        project.save(update_fields=["masking_secret"])


def public_key(project: Project) -> str:
    """The key that the project's attestations are verified with, in base64."""
    return base64.b64encode(_key_of(project).public_key().public_bytes_raw()).decode()


def count_masked(attestation: Mapping[str, Any]) -> int:
    """The number of columns whose values are masked."""
    tables = [table for database in attestation["databases"] for table in database["tables"]]
    return sum(column["masked"] for table in tables for column in table["columns"])


def verify(attestation: Mapping[str, Any], key: str) -> None:
    """Raises AttestationInvalid unless the attestation was signed with the private part of `key`,
    in base64."""
    content = dict(attestation)
    try:
        signature = base64.b64decode(content.pop("signature"), validate=True)
        verifier = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        verifier.verify(signature, _canonical(content))
    except InvalidSignature:
        raise AttestationInvalid("it was changed, or signed with another key") from None
    except (KeyError, TypeError, ValueError) as error:
        raise AttestationInvalid(f"it has no valid signature or the key is none: {error}") from None


def _signed(project: Project, content: Mapping[str, Any]) -> dict[str, Any]:
    whole = {
        "format": 1,
        "project_id": project.id,
        "perch": perch_version(),
        "postgres": project.pg_version,
        "made_at": clock.now().isoformat(),
        **content,
        "public_key": public_key(project),
    }
    signature = _key_of(project).sign(_canonical(whole))
    return {**whole, "signature": base64.b64encode(signature).decode()}


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _secret_of(project: Project) -> str:
    return encryption.decrypt(project.masking_secret, purpose=encryption.MASKING_SECRETS)


def _key_of(project: Project) -> Ed25519PrivateKey:
    seed = hashlib.sha256(f"attestations:{_secret_of(project)}".encode()).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)
