"""`python -m tests.make_released_state VERSION REF`: makes `tests/fixtures/VERSION.tar.xz`.

REF is the commit that was released as VERSION. Its code is installed into an environment of its own
and run as an ordinary user (`nobody`, if this runs as root). `released_state.fill` fills the
service, which is then stopped and packed. A release that stores something new extends `fill` and
`check`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.support.client import Client
from tests.support.ordinary_user import as_ordinary_user, base_python, give_to_ordinary_user
from tests.support.released_state import FIXTURES, fill, pack
from tests.support.stack import ROOT, new_state_dir, running_stack


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="as 0.1.0")
    parser.add_argument("ref", help="the released commit")
    asked = parser.parse_args(arguments)
    with new_state_dir() as place:
        checkout = place / "checkout"
        checkout.mkdir()
        archive = ["git", "archive", "--output", place / "sources.tar", asked.ref]
        subprocess.run(archive, cwd=ROOT, check=True)
        subprocess.run(["tar", "xf", place / "sources.tar", "-C", checkout], check=True)
        python = installed(checkout, place / "environment")
        give_to_ordinary_user(checkout)
        state_dir = place / "state"
        state_dir.mkdir()
        give_to_ordinary_user(state_dir)
        account = as_ordinary_user()
        program = (python, "manage.py")
        with running_stack(state_dir, program, cwd=checkout, account=account) as stack:
            key = (state_dir / "api-key").read_text().strip()
            client = Client(stack.api_url, key)
            contents = fill(client, stack.proxy_port, version=asked.version)
        FIXTURES.mkdir(exist_ok=True)
        target = FIXTURES / f"{asked.version}.tar.xz"
        pack(state_dir, contents, target)
        print(f"{target}: {target.stat().st_size:,} bytes")


def installed(checkout: Path, environment: Path) -> Path:
    """Install the checkout and its dependencies into an environment of its own. Returns its
    Python."""
    base = base_python()
    assert base is not None, "there is no Python of this version that an ordinary user can run"
    subprocess.run([base, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--editable", f"{checkout}[controlplane]"], check=True)
    return python


if __name__ == "__main__":
    main(sys.argv[1:])
