"""One-time links that sign in."""

import json
import os
import re
import stat
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import Browser
from tests.console.pages import Page
from tests.console.sign_in.test_sessions import name_of
from tests.support.stack import ROOT, Stack


class TestLink:
    @pytest.fixture
    def console(self, stack: Stack, settings: Any) -> str:
        settings.STATE_DIR = str(stack.state_dir / "console")
        return str(stack.console_url)

    def link(self, stack: Stack, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "manage.py"), "sign_in_link", *arguments]
        done = subprocess.run(
            [*command, "--state-dir", str(stack.state_dir)],
            env={k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def code(self, link: str) -> str:
        return str(link.partition("code=")[2])

    def file(self, stack: Stack, code: str) -> Path:
        return stack.state_dir / "console" / "links" / sha256(code.encode()).hexdigest()

    def expire(self, stack: Stack, code: str, in_seconds: float) -> None:
        file = self.file(stack, code)
        data = json.loads(file.read_text())
        file.write_text(json.dumps({**data, "until": time.time() + in_seconds}))

    def test_the_link_of_up_works_once(self, visitor: Browser, stack: Stack, console: str) -> None:
        found = re.search(r"http\S+code=\S+", (stack.state_dir / "up.log").read_text())
        assert found
        assert found[0].startswith(f"{console}/sign-in/link?")
        code = self.code(found[0])
        # The service that tests share may be older than its link's ten minutes.
        self.expire(stack, code, in_seconds=60)
        # Opening the link does not use it up.
        for _ in range(2):
            assert Page(visitor.get(f"/sign-in/link?code={code}")).fields["code"] == code
        assert visitor.post("/sign-in/link", {"code": code})["Location"] == "/"
        assert name_of(visitor) == "local"
        again = Browser()
        assert again.post("/sign-in/link", {"code": code}).status_code == 410
        assert again.get(f"/sign-in/link?code={code}").status_code == 410
        assert again.get("/").status_code == 302

    def test_a_command_prints_another_link(
        self, visitor: Browser, stack: Stack, console: str
    ) -> None:
        link = self.link(stack, "--console-url", "https://console.example.com/")
        assert link.startswith("https://console.example.com/sign-in/link?code=")
        assert self.link(stack).startswith(console)
        visitor.post("/sign-in/link", {"code": self.code(link)})
        assert name_of(visitor) == "local"

    @pytest.mark.thorough
    @pytest.mark.usefixtures("console")
    def test_a_link_is_valid_for_minutes(self, visitor: Browser, stack: Stack) -> None:
        code = self.code(self.link(stack))
        file = self.file(stack, code)
        assert stat.filemode(file.stat().st_mode) == "-rw-------"
        assert 500 < json.loads(file.read_text())["until"] - time.time() <= 600
        self.expire(stack, code, in_seconds=-1)
        assert visitor.post("/sign-in/link", {"code": code}).status_code == 410
        assert not file.exists()

    @pytest.mark.parametrize("code", ["", "x", "../../api-key", "a" * 5000])
    def test_an_invalid_code_signs_nobody_in(self, visitor: Browser, code: str) -> None:
        assert visitor.post("/sign-in/link", {"code": code}).status_code == 410

    def test_a_file_that_others_may_write_is_not_accepted_as_a_link(
        self, visitor: Browser, settings: Any, tmp_path: Path
    ) -> None:
        settings.STATE_DIR = str(tmp_path)
        (tmp_path / "links").mkdir()
        file = tmp_path / "links" / sha256(b"x").hexdigest()
        file.write_text(json.dumps({"key": "k", "until": time.time() + 60}))
        file.chmod(0o666)
        assert visitor.post("/sign-in/link", {"code": "x"}).status_code == 410
