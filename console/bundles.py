"""The console's stylesheet, script and icon. Browsers get each as one compressed file.

The stylesheet consists of `static/*.css`, the script of `static/*.js`, both after the files of
others that they build on. A new file in `static/` becomes part of them automatically.
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
    # The files that come first, in this order: those of others, and then the console's own base.
    first: tuple[str, ...]
    between: str
    # Removes what browsers do not need. Comments that begin with "!", as licences do, stay.
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
    # By the name of the content encoding; the shortest first.
    packed: tuple[tuple[str, bytes], ...]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:12]


def bundle(name: str) -> Bundle:
    """Return the bundle of that kind. With DEBUG, it includes changes made since the start."""
    return _bundle(name, _newest(name) if settings.DEBUG else 0.0)


def address(name: str) -> str:
    """Return its URL. It has a hash of the content, so that browsers may keep it for ever."""
    return f"{settings.STATIC_URL}perch.{name}?v={bundle(name).fingerprint}"


def sources(name: str) -> list[Path]:
    """Return the files that a bundle consists of, in order."""
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
