"""Passwords that roles had, kept for branches of past moments."""

from datetime import timedelta

from controlplane import clock
from controlplane.models import Account, Branch, FormerPassword, Host, Role
from controlplane.operations.history_retention import forget_former_passwords
from tests.controlplane.rows import make_project


def verifiers() -> list[str]:
    return list(FormerPassword.objects.order_by("id").values_list("verifier", flat=True))


def test_a_changed_or_deleted_roles_password_is_kept(account: Account, host: Host) -> None:
    branch = Branch.objects.get(project=make_project(account, host))
    role = Role.objects.create(branch=branch, name="one", verifier="first")
    role.verifier = "second"
    role.save()
    role.valid_until = clock.now()
    role.save()
    assert verifiers() == ["first"]
    role.delete()
    assert verifiers() == ["first", "second"]


def test_it_is_forgotten_after_the_retention(account: Account, host: Host) -> None:
    project = make_project(account, host)
    branch = Branch.objects.get(project=project)
    for name, age in (("old", 3700), ("young", 3500)):
        replaced_at = clock.now() - timedelta(seconds=age)
        FormerPassword.objects.create(branch_id=branch.id, verifier=name, replaced_at=replaced_at)
    FormerPassword.objects.create(branch_id="br-gone", verifier="x", replaced_at=clock.now())
    project.history_retention_seconds = 3600
    project.save()
    forget_former_passwords(host)
    assert verifiers() == ["young"]
    Branch.objects.filter(id=branch.id).update(deleted_at=clock.now())
    forget_former_passwords(host)
    assert verifiers() == []
