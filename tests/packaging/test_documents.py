"""The documents are consistent: the site has every page, links are valid, and commands that no test
runs are marked. In .ci/run, `zensical build --strict` checks the links of the site."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging import test_commands_in_documents, test_three_machines
from tests.packaging.documents import (
    COMMANDS,
    DOCS,
    OTHER_LANGUAGES,
    TOP,
    anchors_of,
    blocks_of,
    commands_of,
    documents,
    links_of,
)
from tests.support.stack import ROOT

MARK = re.compile(r"not run: \S.{20,}|run by test_\w+|runs until stopped")

PRINT_COMMANDS = """
import argparse, json, os, django, manage
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
django.setup()
from django.core.management import BaseCommand, load_command_class

def options(command, name):
    actions = command.create_parser("", name)._actions
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    return {one for action in shown for one in action.option_strings}

common = options(BaseCommand(), "any")
print(json.dumps({
    name: sorted(options(load_command_class("controlplane", name), name) - common)
    for name in manage.controlplane_commands()
}))
"""


def pages_in(navigation: list[dict[str, Any]]) -> Iterator[str]:
    for entry in navigation:
        for page in entry.values():
            yield from [page] if isinstance(page, str) else pages_in(page)


def test_the_navigation_has_every_page_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(pages_in(site["nav"])) == pages


@pytest.mark.parametrize("name", [*TOP, *(str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md"))])
def test_every_link_leads_to_a_file_and_a_section(name: str) -> None:
    document = ROOT / name
    for link in links_of(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.is_file(), link
        assert not anchor or anchor in anchors_of(target), link


def test_every_mark_is_known_and_a_block_that_is_not_run_has_a_reason() -> None:
    for document in documents():
        for block in commands_of(document):
            assert not block.mark or MARK.fullmatch(block.mark), block.name
            assert not block.run_by or any(
                hasattr(module, block.run_by)
                for module in (test_commands_in_documents, test_three_machines)
            ), block.name


def test_no_block_of_another_language_has_commands() -> None:
    for document in documents():
        for block in blocks_of(document):
            assert block.language in (*COMMANDS, *OTHER_LANGUAGES), block.name
            typed = re.search(r"^(\$|curl|perch|psql|apt-get) ", block.text, re.MULTILINE)
            assert block.language in COMMANDS or not typed, block.name


def test_blocks_that_are_not_run_can_be_parsed() -> None:
    for document in documents():
        for block in blocks_of(document):
            if block.language in ("sh", "bash"):
                check_shell(block.text, block.name)
            elif block.language in ("yaml", "yml") and "jobs" in yaml.safe_load(block.text):
                check_workflow(block.text, block.name)
            elif block.language == "json" and "…" not in block.text:
                json.loads(block.text)


@pytest.mark.parametrize(
    "path", [*DOCS.rglob("*.yml"), *(ROOT / ".github").rglob("*.yml")], ids=lambda path: path.name
)
def test_a_workflow_can_be_parsed(path: Path) -> None:
    check_workflow(path.read_text(), str(path))


def test_the_reference_names_every_command_with_its_options() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_COMMANDS], cwd=ROOT, capture_output=True, text=True
    )
    assert printed.returncode == 0, printed.stderr
    rows = re.findall(
        r"^\| (`.+?) \| .+ \| (.*)\|$", (DOCS / "reference/commands.md").read_text(), re.M
    )
    told = {
        name: sorted(re.findall(r"`(--?[\w-]+)`", options))
        for names, options in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert told == json.loads(printed.stdout)


def check_workflow(text: str, name: str) -> None:
    workflow = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as true.
    assert {"name", True} <= workflow.keys(), name
    for job in workflow["jobs"].values():
        assert "runs-on" in job, name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            check_shell(re.sub(r"\$\{\{.*?\}\}", "value", step.get("run", "")), name)


def check_shell(text: str, name: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, f"{name}: {checked.stderr}"


def test_nothing_installs_the_package_of_that_name_from_an_index() -> None:
    files = [*documents(), ROOT / "SECURITY.md", *(ROOT / "deploy").rglob("*"), ROOT / "manage.py"]
    files += [*(ROOT / "controlplane").rglob("*.py"), *(ROOT / ".github").rglob("*.yml")]
    texts = {path: path.read_text() for path in files if path.is_file()}
    assert len(texts) > 100
    # `perch` as an argument of an installer, or as a requirement with extras or a version.
    stranger = re.compile(r"\binstall\b[^\n]*[ '\"]perch(?![\w./-])|(?<![\w/.-])perch(\[|==|>=)")
    found = [
        f"{path}: {line}"
        for path, text in texts.items()
        for line in text.splitlines()
        if stranger.search(line) and not re.search(r"apt-get install|install -d", line)
    ]
    assert not found


def test_the_readme_installs_all_that_the_tests_compare() -> None:
    # A package that only .ci/run installs would be missing wherever the README is followed.
    (line,) = re.findall(r"^python3 -m venv .*-m tests$", (ROOT / "README.md").read_text(), re.M)
    extras = set(re.findall(r"\.\[([a-z,]+)\]", line)[0].split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(project["optional-dependencies"])
    assert named == extras
    assert "pip install" not in (ROOT / ".ci" / "run").read_text()
