"""The API layer turns requests into calls and results into responses. Only services query."""

import ast
from pathlib import Path

import pytest

from controlplane import api

MODULES = sorted(Path(api.__path__[0]).glob("*.py"))
# Calls that begin or extend a query, or write a row.
QUERYING = {"objects", "all", "filter", "exclude", "select_related", "save", "refresh_from_db"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_api_does_not_query(module: Path) -> None:
    found = [
        f"{ast.unparse(node)} (line {node.lineno})"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in QUERYING
    ]
    assert found == []
