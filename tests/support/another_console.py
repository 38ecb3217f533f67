"""Starts another console beside that of a running service, for an API that the test controls."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from tests.support.stack import ROOT, free_port
from tests.support.waiting import wait_for


@contextmanager
def another_console(api_url: str, **environment: str) -> Iterator[str]:
    """Start it by the command of the Procfile. Yields its address. Ends it as Ctrl-C does."""
    port = free_port()
    line = next(
        line.removeprefix("web: ")
        for line in (ROOT / "Procfile").read_text().splitlines()
        if line.startswith("web: ")
    )
    with tempfile.TemporaryDirectory(prefix="perch-console-") as state_dir:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}"],
            cwd=ROOT,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")},
                "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
                "PORT": str(port),
                "MANAGEMENT_API_URL": api_url,
                "PERCH_SECRET_KEY": "a secret of the tests",
                "PERCH_CONSOLE_STATE_DIR": state_dir,
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: _answers(url), "another console")
            yield url
        finally:
            process.terminate()
            process.wait(40)


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/sign-in", timeout=5).ok
    except requests.RequestException:
        return False
