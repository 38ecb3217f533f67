"""constraints.txt: the versions with which Perch is tested, and the bounds in pyproject.toml."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import tested_versions
from tests.support.stack import ROOT
from tests.tested_versions import installed, requirements, written


def test_it_names_packages_and_versions_only() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert len(lines) > 100
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    assert [*written()] == sorted(written())


def test_every_requirement_allows_the_version_with_which_it_is_tested() -> None:
    lock = written()
    for one in map(Requirement, requirements()):
        version = lock[canonicalize_name(one.name)]
        assert one.specifier.contains(version), f"{one}: tested with {version}"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="made with Python 3.11")
def test_it_has_what_the_requirements_require_too() -> None:
    assert installed().keys() == written().keys()


@pytest.mark.parametrize("name", ["gunicorn", "gevent", "uvloop"])
def test_a_release_that_may_break_the_servers_is_not_allowed(name: str) -> None:
    (found,) = (one for one in map(Requirement, requirements()) if one.name == name)
    major = int(written()[name].split(".")[0])
    assert not found.specifier.contains(f"{major + 1}.0")


def test_an_environment_with_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tested_versions"])
    monkeypatch.setattr(tested_versions, "FILE", tmp_path / "constraints.txt")
    tested_versions.main()
    monkeypatch.setattr(sys, "argv", ["tested_versions", "--check"])
    with pytest.raises(SystemExit) as ended:
        tested_versions.main()
    assert ended.value.code == 0

    text = tested_versions.FILE.read_text()
    tested_versions.FILE.write_text(re.sub(r"gunicorn==\S+", "gunicorn==1.0", text))
    with pytest.raises(SystemExit) as ended:
        tested_versions.main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith("gunicorn: constraints.txt has 1.0, installed is ")
