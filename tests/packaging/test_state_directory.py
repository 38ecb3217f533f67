"""The default state directory."""

import os
from pathlib import Path

import pytest

from controlplane.environment import default_state_dir


@pytest.fixture(autouse=True)
def as_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_in_a_checkout_it_is_below_the_checkout() -> None:
    assert default_state_dir(checkout=Path("/src/perch")) == Path("/src/perch/var")


def test_with_a_wheel_it_is_in_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_state_dir(checkout=None) == Path("/home/alice/.local/state/perch")
    monkeypatch.setenv("XDG_STATE_HOME", "/data/state")
    assert default_state_dir(checkout=None) == Path("/data/state/perch")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_dir(checkout=None) == Path("/home/alice/.local/state/perch")


def test_for_root_it_is_a_directory_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for checkout in (Path("/src/perch"), None):
        assert default_state_dir(checkout=checkout) == Path("/var/lib/perch")
