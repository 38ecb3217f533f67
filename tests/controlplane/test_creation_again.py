"""A branch whose creation failed is made again from its source's present state."""

import pytest

from controlplane.models import Account, Branch, Host, Role
from controlplane.operations.locks import locked_project
from controlplane.services.creation import creation_again
from tests.controlplane.rows import make_project


@pytest.mark.parametrize("protected", [False, True])
def test_roles_of_a_protected_source_get_their_own_passwords(
    account: Account, host: Host, protected: bool
) -> None:
    project = make_project(account, host)
    source = Branch.objects.get(project=project)
    Branch.objects.filter(id=source.id).update(protected=protected)
    child = Branch.objects.create(project=project, parent=source, name="child")
    Role.objects.create(branch=source, name="late", verifier="the source's")
    with locked_project(project.id):
        (step,) = creation_again(Branch.objects.get(id=child.id), [])
    assert step.branch is not None
    taken = Role.objects.get(branch=child, name="late")
    assert (taken.verifier == "the source's") != protected
    assert taken.verifier
