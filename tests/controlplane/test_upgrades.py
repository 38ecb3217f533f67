"""This version continues with the state directory of a released version, run by an ordinary user.
CONTRIBUTING.md says how a release adds its own."""

import os
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.ordinary_user import (
    as_ordinary_user,
    give_to_ordinary_user,
    own_checkout,
    own_python,
)
from tests.support.processes import postmaster_in
from tests.support.released_state import FIXTURES, check, unpack
from tests.support.stack import running_stack

RELEASES = sorted(FIXTURES.glob("*.tar.xz"))


@pytest.mark.parametrize("archive", RELEASES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_an_ordinary_users_state_is_kept(state_dir: Path, archive: Path) -> None:
    """Rows, roles and poolers are still there, and new ones can be created."""
    place, state_dir = state_dir, state_dir / "state"
    state_dir.mkdir()
    contents = unpack(archive, state_dir)
    give_to_ordinary_user(place)
    python, checkout = own_python(place / "venv"), own_checkout(place / "checkout")
    account = as_ordinary_user()
    program = (python, "manage.py")
    home = {"HOME": str(place)}
    with running_stack(state_dir, program, cwd=checkout, account=account, **home) as stack:
        client = Client(stack.api_url, contents.key)
        check(client, stack.proxy_port, contents)
        # A branch of the release can use everything that was added later.
        branches = f"/projects/{contents.project_id}/branches"
        of_it = {"branch": {"parent_id": contents.branch_id}, "endpoints": [{"type": "read_write"}]}
        for made in (
            client.post(f"{branches}/{contents.branch_id}/snapshot"),
            client.post(branches, of_it),
            client.new_project(),
        ):
            assert {one["status"] for one in client.finish(made)} == {"finished"}
        postmaster = postmaster_in(stack.data_dir(contents.branch_id))
        assert postmaster.uids().real == account.get("user", os.geteuid())
