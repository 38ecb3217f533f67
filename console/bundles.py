"""The console's stylesheet, script and icon. Browsers get each as one compressed file.

The stylesheet consists of `static/*.css`, the script of `static/*.js`, both after the files of
others that they build on. A new file in `static/` becomes part of them automatically. What only a
few pages need is in a folder, which makes a stylesheet and a script of their own for these pages.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import brotli
import deflate
from csp.decorators import csp_exempt
from django.conf import settings
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from console.request import ConsoleRequest, public

FOLDER = Path(settings.STATICFILES_DIRS[0])
# Bytes of a bundle from which on it is compressed faster and less well.
LARGE = 200_000


@dataclass(frozen=True)
class Kind:
    content_type: str
    # The files that come first, in this order: those of others, and then the console's own base.
    first: tuple[str, ...]
    between: str
    # The comments of the console's own files, which browsers do not need.
    comments: re.Pattern[str]


CSS = Kind(
    "text/css; charset=utf-8",
    ("vendor/pico.min.css", "theme.css", "console.css"),
    "\n",
    re.compile(r"/\*.*?\*/", re.DOTALL),
)
JS = Kind(
    "text/javascript; charset=utf-8",
    ("django_htmx/htmx-2.min.js", "vendor/idiomorph.min.js", "console.js"),
    "\n;",
    re.compile(r"^\s*//.*$", re.MULTILINE),
)
# The folders of what only a few pages need. Pages load the tips if they have something to explain;
# the query page loads the editor when somebody is about to type.
FOLDERS_OF_STYLES = ("filters", "history", "query", "schema", "timelines", "tree")
FOLDERS_OF_SCRIPTS = ("history", "palette", "query", "tables", "tips")
# By the ends of their addresses.
KINDS = {
    "css": CSS,
    "js": JS,
    **{f"{folder}.css": replace(CSS, first=()) for folder in FOLDERS_OF_STYLES},
    **{f"{folder}.js": replace(JS, first=()) for folder in FOLDERS_OF_SCRIPTS},
    "editor.js": replace(JS, first=("vendor/codemirror.min.js",)),
    "svg": Kind("image/svg+xml", (), "\n", re.compile("<!--.*?-->", re.DOTALL)),
}


# By the name of the content encoding; the shortest first.
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    # The best quality takes seconds for a large file, and saves little.
    "br": lambda content: brotli.compress(content, quality=11 if len(content) < LARGE else 9),
    # A twentieth shorter than by zlib's best level.
    "gzip": lambda content: bytes(deflate.gzip_compress(content, 12)),
}


@dataclass(frozen=True)
class Bundle:
    content_type: str
    content: bytes

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:12]


@cache
def packed(content: bytes, encoding: str) -> bytes:
    """Return the content in that encoding. The first call takes about 0.1 s of the processor, which
    a console does not spend at its start: many are started that no browser visits."""
    return ENCODINGS[encoding](content)


def bundle(name: str) -> Bundle:
    """Return the bundle of that kind. With DEBUG, it includes changes made since the start."""
    newest = max(path.stat().st_mtime for path in sources(name)) if settings.DEBUG else 0.0
    return _bundle(name, newest)


def address(name: str) -> str:
    """Return its URL. It has a hash of the content, so that browsers may keep it for ever."""
    return f"{settings.STATIC_URL}perch.{name}?v={bundle(name).fingerprint}"


def sources(name: str) -> list[Path]:
    """Return the files that a bundle consists of, in order."""
    first = [Path(found) for one in KINDS[name].first if (found := finders.find(one))]
    folder, _, suffix = name.rpartition(".")
    own = sorted((FOLDER / folder).glob(f"*.{suffix}"))
    return first + [path for path in own if path not in first]


@cache
def _bundle(name: str, newest: float) -> Bundle:
    kind = KINDS[name]
    content = kind.between.join(_without_comments(path, kind) for path in sources(name))
    return Bundle(kind.content_type, content.encode())


def _without_comments(path: Path, kind: Kind) -> str:
    """Return the file without comments, indentation and empty lines. Others' files, which have
    licences in comments, stay as they are."""
    text = path.read_text()
    if not path.is_relative_to(FOLDER) or path.is_relative_to(FOLDER / "vendor"):
        return text
    lines = (line.strip() for line in kind.comments.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


MAX_AGE = 365 * 24 * 3600


# The content security policy applies to pages, not to styles and scripts.
@public
@csp_exempt()  # type: ignore[arg-type] # it passes on whatever it is given
@require_safe
def show(request: ConsoleRequest, name: str) -> HttpResponse:
    """Answer with the shortest encoding that the browser accepts."""
    found = bundle(name)
    accepted = request.headers.get("Accept-Encoding", "").split(",")
    understood = {part.partition(";")[0].strip() for part in accepted}
    encoding = next((one for one in ENCODINGS if one in understood), "")
    content = packed(found.content, encoding) if encoding else found.content
    answer = HttpResponse(content, content_type=found.content_type)
    if encoding:
        answer["Content-Encoding"] = encoding
    patch_vary_headers(answer, ["Accept-Encoding"])
    is_this = request.GET.get("v") == found.fingerprint
    # During an upgrade, the address may be another version's. This content is not cached for it.
    answer["Cache-Control"] = f"max-age={MAX_AGE}, public, immutable" if is_this else "no-store"
    return answer
