"""What is public of Neon's API, where the checkout has it beside itself."""

from pathlib import Path

import pytest

from tests.support.stack import ROOT


def specification(name: str) -> Path:
    """The file `shared/spec/<name>` beside the checkout, or beside what that lies in; skips the
    test where there is none."""
    for above in (ROOT.parent, ROOT.parent.parent):
        found = above / "shared" / "spec" / name
        if found.exists():
            return found
    pytest.skip(f"shared/spec/{name} is not beside the checkout")
