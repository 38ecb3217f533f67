"""The scripts as browsers get them: minified without a change of meaning."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from console.bundles import FOLDER, KINDS, bundle, packed, sources


@pytest.mark.parametrize("name", ["js", "editor.js"])
def test_code_of_others_is_unchanged(name: str) -> None:
    content = bundle(name).content.decode()
    for path in sources(name):
        if "vendor" in path.parts or "django_htmx" in path.parts:
            assert path.read_text().strip() in content, path.name


@pytest.mark.parametrize(
    "path",
    [
        *(*sources("js"), *sources("history.js")),
        *sources("tips.js"),
        *(*sources("query.js"), *sources("editor.js")[1:]),
    ],
    ids=lambda path: path.name,
)
def test_spaces_in_strings_are_kept(path: Path) -> None:
    source = re.sub(r"(?m)^\s*//.*$|/\*[\s\S]*?\*/", "", path.read_text())
    small = KINDS["js"].minify(source)
    # The minifier does not understand a template within a template; it takes the rest for code.
    assert not re.search(r"\$\{[^}`]*`", source)
    for words in re.findall(r"`[^`\n]* [^`\n]*`", source):
        assert words in small


def test_what_every_page_loads_is_small_by_gzip() -> None:
    """A first page may have 45,000 bytes, of which 3,000 stay free and 3,900 are for the page."""
    sizes = {name: len(packed(bundle(name).content, "gzip")) for name in ("css", "js", "svg")}
    assert sum(sizes.values()) <= 38_100, sizes


def test_no_template_has_what_was_dropped_from_pico() -> None:
    trim = SimpleNamespace(**runpy.run_path(str(FOLDER / "vendor/pico_trim.py")))
    small = (FOLDER / "vendor/pico.min.css").read_text()
    assert trim.trimmed(small) == small
    tags = "|".join(trim.ELEMENTS)
    attributes = "|".join(one.replace("=", '="?') for one in trim.ATTRIBUTES)
    dropped = re.compile(rf'<({tags})[ >]|<[^>]* ({attributes})[" >]')
    for path in (FOLDER.parent / "templates").rglob("*.html"):
        assert not dropped.search(path.read_text()), path.name
