"""The scripts as browsers get them: small, and still what was written."""

import re
from pathlib import Path

import pytest

from console.bundles import KINDS, bundle, sources


def test_what_is_others_comes_as_it_is() -> None:
    content = bundle("js").content.decode()
    for path in sources("js"):
        if "vendor" in path.parts or "django_htmx" in path.parts:
            assert path.read_text().strip() in content, path.name


@pytest.mark.parametrize("path", sources("js"), ids=lambda path: path.name)
def test_spaces_in_words_stay(path: Path) -> None:
    small = KINDS["js"].minify(path.read_text())
    # What makes scripts small knows no template within a template, and takes the rest for code.
    assert not re.search(r"\$\{[^}`]*`", path.read_text())
    for words in re.findall(r"`[^`\n]* [^`\n]*`", path.read_text()):
        assert words in small
