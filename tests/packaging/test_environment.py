"""docs/reference/environment.md lists every variable that Perch reads, with its default."""

import ast
import re
from collections.abc import Iterator

from tests.support.stack import ROOT

READERS = ("env", "envbool", "envfloat", "envint", "envlist", "envsecret", "envstr")
# A row: the variable, the processes, the default, the meaning.
ROW = re.compile(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|[^|]+\|$", re.MULTILINE)
IN_PROCFILE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def documented() -> dict[str, str]:
    """Return the table's variables with the text of its column of defaults."""
    rows = ROW.findall((ROOT / "docs" / "reference" / "environment.md").read_text())
    assert len(dict(rows)) == len(rows), "a variable has two rows"
    return dict(rows)


def read_in_code() -> Iterator[tuple[str, str]]:
    """Yield the variables that the packages read, each with its default, or "" if it has none."""
    modules = [ROOT / "manage.py", *(ROOT / "console").rglob("*.py")]
    modules += (ROOT / "controlplane").rglob("*.py")
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            yield from variables(node)
    yield from IN_PROCFILE.findall((ROOT / "Procfile").read_text())


def variables(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Call(func=ast.Name(id=reader), args=[ast.Constant(value=str(name)), *rest]) if (
            reader in READERS
        ):
            default = [*rest, *(keyword.value for keyword in node.keywords)]
            yield name, literal(default[0]) if default else ""
        case ast.Call(
            func=ast.Attribute(attr="get" | "getenv", value=value),
            args=[ast.Constant(value=str(name)), *_],
        ) if is_environ(value):
            yield name, ""
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name)), ctx=ast.Load()) if (
            is_environ(value)
        ):
            yield name, ""
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[value]) if is_environ(
            value
        ):
            yield name, ""
        # However it is read: only environment variables have such names.
        case ast.Constant(value=str(name)) if re.fullmatch(r"PERCH_[A-Z_]+", name):
            yield name, ""


def is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "os")


def literal(node: ast.expr) -> str:
    """Return a constant default as the table writes it."""
    return str(node.value) if isinstance(node, ast.Constant) else ""


def test_every_way_of_reading_a_variable_is_found() -> None:
    code = (
        "envint('A', 1); envbool('B', default=False); os.environ.get('C'); os.getenv('D')\n"
        "os.environ['E']; 'F' in os.environ; MARK = 'PERCH_G'; os.environ['NOT'] = 'set'"
    )
    found = dict(each for node in ast.walk(ast.parse(code)) for each in variables(node))
    assert found == dict.fromkeys("CDEF", "") | {"A": "1", "B": "False", "PERCH_G": ""}


def test_the_table_and_the_code_name_the_same_variables() -> None:
    assert documented().keys() == {name for name, _ in read_in_code()}


def test_the_table_has_the_codes_defaults() -> None:
    table = documented()
    defaults = {(name, default) for name, default in read_in_code() if default}
    assert len(defaults) > 10
    for name, default in defaults:
        assert f"`{default}`" in table[name], name
