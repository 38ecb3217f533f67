"""Static files, with a hash of the content in each address: browsers may keep them for ever."""

import hashlib
from functools import cache
from pathlib import Path

from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage


class FingerprintedFiles(StaticFilesStorage):
    def url(self, name: str | None) -> str:
        plain = super().url(name)
        digest = fingerprint(name) if name else None
        return f"{plain}?v={digest}" if digest else plain


@cache
def fingerprint(name: str) -> str | None:
    path = finders.find(name)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path else None
