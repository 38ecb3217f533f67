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
    source = re.sub(r"(?m)^\s*//.*$|/\*[\s\S]*?\*/", "", path.read_text())
    small = KINDS["js"].minify(source)
    # The minifier knows no template within a template, and takes the rest for code.
    assert not re.search(r"\$\{[^}`]*`", source)
    for words in re.findall(r"`[^`\n]* [^`\n]*`", source):
        assert words in small
