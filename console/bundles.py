"""The console's stylesheet and its script: each one file to browsers, made of several here; and
its icon, packed as they are.

`static/*.css` is one, `static/*.js` the other, after what they build on. A new file in `static/`
is part of them by being there.
"""

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import brotli
import rcssmin
import rjsmin
from django.conf import settings
from django.contrib.staticfiles import finders

FOLDER = Path(settings.STATICFILES_DIRS[0])


@dataclass(frozen=True)
class Kind:
    content_type: str
    # What the folder's own files build on, in this order; the console's own before its parts'.
    first: tuple[str, ...]
    between: str
    # Drops what browsers have no use for. Licences' comments, which begin with "!", stay.
    minify: Callable[[str], str]


KINDS = {
    "css": Kind(
        "text/css; charset=utf-8",
        ("vendor/pico.min.css", "theme.css", "console.css"),
        "\n",
        partial(rcssmin.cssmin, keep_bang_comments=True),
    ),
    "js": Kind(
        "text/javascript; charset=utf-8",
        ("django_htmx/htmx-2.min.js", "vendor/idiomorph.min.js", "console.js"),
        "\n;",
        partial(rjsmin.jsmin, keep_bang_comments=True),
    ),
    "svg": Kind("image/svg+xml", (), "\n", str.strip),
}


@dataclass(frozen=True)
class Bundle:
    content_type: str
    content: bytes
    # By what a browser says that it understands; the shortest first.
    packed: tuple[tuple[str, bytes], ...]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:12]


def bundle(name: str) -> Bundle:
    """By the name of its kind. While debugging, what has been changed since is in it."""
    return _bundle(name, _newest(name) if settings.DEBUG else 0.0)


def address(name: str) -> str:
    """With a hash of the content: browsers may keep it for ever."""
    return f"{settings.STATIC_URL}perch.{name}?v={bundle(name).fingerprint}"


def sources(name: str) -> list[Path]:
    """The files that a bundle is made of, in their order."""
    first = [Path(found) for one in KINDS[name].first if (found := finders.find(one))]
    return first + [path for path in sorted(FOLDER.glob(f"*.{name}")) if path not in first]


def _newest(name: str) -> float:
    return max(path.stat().st_mtime for path in sources(name))


@cache
def _bundle(name: str, newest: float) -> Bundle:
    kind = KINDS[name]
    texts = [path.read_text() for path in sources(name)]
    content = kind.between.join(kind.minify(text) for text in texts).encode()
    packed = ("br", brotli.compress(content)), ("gzip", gzip.compress(content, 9, mtime=0))
    return Bundle(kind.content_type, content, packed)
