"""The scripts and styles as browsers get them."""

import re
import runpy
from types import SimpleNamespace

import pytest

from console.bundles import FOLDER, KINDS, bundle, packed, sources


@pytest.mark.parametrize("name", ["js", "editor.js"])
def test_code_of_others_is_unchanged(name: str) -> None:
    content = bundle(name).content.decode()
    for path in sources(name):
        if "vendor" in path.parts or "django_htmx" in path.parts:
            assert path.read_text().strip() in content, path.name


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith("js")])
def test_own_scripts_lose_only_comments_and_indentation(name: str) -> None:
    content = bundle(name).content.decode().split("\n")
    for path in sources(name):
        if "vendor" not in path.parts and path.is_relative_to(FOLDER):
            lines = (line.strip() for line in path.read_text().split("\n"))
            code = [line for line in lines if line and not line.startswith("//")]
            assert set(code) <= {line.removeprefix(";") for line in content}, path.name


def test_what_every_page_loads_is_small_by_gzip() -> None:
    """A first page may have 45,000 bytes, of which 2,400 stay free and 3,900 are for the page."""
    sizes = {name: len(packed(bundle(name).content, "gzip")) for name in ("css", "js", "svg")}
    assert sum(sizes.values()) <= 38_700, sizes


def test_no_template_has_what_was_dropped_from_pico() -> None:
    trim = SimpleNamespace(**runpy.run_path(str(FOLDER / "vendor/pico_trim.py")))
    small = (FOLDER / "vendor/pico.min.css").read_text()
    assert trim.trimmed(small) == small
    tags = "|".join(trim.ELEMENTS)
    attributes = "|".join(one.replace("=", '="?') for one in trim.ATTRIBUTES)
    dropped = re.compile(rf'<({tags})[ >]|<[^>]* ({attributes})[" >]')
    for path in (FOLDER.parent / "templates").rglob("*.html"):
        assert not dropped.search(path.read_text()), path.name
