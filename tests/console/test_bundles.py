"""The scripts as browsers get them: minified without a change of meaning."""

import re
from pathlib import Path

import pytest

from console.bundles import KINDS, bundle, sources


@pytest.mark.parametrize("name", ["js", "query.js"])
def test_code_of_others_is_unchanged(name: str) -> None:
    content = bundle(name).content.decode()
    for path in sources(name):
        if "vendor" in path.parts or "django_htmx" in path.parts:
            assert path.read_text().strip() in content, path.name


@pytest.mark.parametrize(
    "path",
    [
        *(*sources("js"), *sources("commands.js"), *sources("history.js")),
        *sources("query.js")[1:],
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
