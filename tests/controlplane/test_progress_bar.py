"""The bar that `up` shows on a terminal."""

import io
from pathlib import Path

from controlplane.management.progress_bar import bar
from tests.support.waiting import wait_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_shows_how_much_is_written(tmp_path: Path) -> None:
    terminal = Terminal()
    with bar(tmp_path, 1000, out=terminal):
        wait_for(lambda: f"[{'.' * 30}]" in terminal.getvalue(), "the empty bar")
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "file").write_bytes(bytes(500))
        wait_for(lambda: "[#####" in terminal.getvalue(), "progress")
    assert terminal.getvalue().endswith(" \r")


def test_it_shows_nothing_in_a_file(tmp_path: Path) -> None:
    file = io.StringIO()
    with bar(tmp_path, 1000, out=file):
        (tmp_path / "file").write_bytes(bytes(500))
    assert file.getvalue() == ""
