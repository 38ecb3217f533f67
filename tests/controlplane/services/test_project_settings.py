"""A project's settings: typed, merged by key, and recorded in events; unsupported ones are
refused."""

import json
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.models import Account, Event, Host, Project
from tests.controlplane.rows import make_host, make_project

ALLOWED = {"ips": ["192.0.2.7", "192.0.2.0/24", "2001:db8::1-2001:db8::9"]}


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


def send(api: DjangoClient, project: Project, settings: Any) -> Any:
    return api.generic(
        "PATCH",
        f"/api/v2/projects/{project.id}",
        json.dumps({"project": {"settings": settings}}),
        content_type="application/json",
    )


def settings_after(api: DjangoClient, project: Project, settings: Any) -> Any:
    """Return the settings from the response to the change, which equal those that are read."""
    response = send(api, project, settings)
    assert response.status_code == 200, response.content
    changed = response.json()["project"]["settings"]
    assert api.get(f"/api/v2/projects/{project.id}").json()["project"]["settings"] == changed
    (listed,) = api.get("/api/v2/projects").json()["projects"]
    assert listed["settings"] == changed
    return changed


def test_it_works(api: DjangoClient, project: Project) -> None:
    assert settings_after(api, project, {}) == {}
    quota = {"active_time_seconds": 3600, "logical_size_bytes": 2**63 - 1}
    sent = {"allowed_ips": ALLOWED, "quota": quota, "block_public_connections": True}
    assert settings_after(api, project, sent) == {
        "quota": quota,
        "allowed_ips": {**ALLOWED, "protected_branches_only": False, "primary_branch_only": False},
        "block_public_connections": True,
    }
    project.refresh_from_db()
    assert project.settings == {
        "quota": quota,
        "allowed_ips": {**ALLOWED, "protected_branches_only": False},
        "block_public_connections": True,
    }


def test_a_sent_key_is_replaced_and_quota_is_merged_by_field(
    api: DjangoClient, project: Project
) -> None:
    sent = {"allowed_ips": {**ALLOWED, "protected_branches_only": True}}
    settings_after(api, project, {**sent, "quota": {"compute_time_seconds": 5}})
    after = settings_after(api, project, {"quota": {"active_time_seconds": 0}})
    assert after["quota"] == {"active_time_seconds": 0, "compute_time_seconds": 5}
    assert after["allowed_ips"]["protected_branches_only"] is True
    after = settings_after(api, project, {"allowed_ips": {"ips": []}})
    assert after["allowed_ips"] == {
        "ips": [],
        "protected_branches_only": False,
        "primary_branch_only": False,
    }
    assert settings_after(api, project, {"allowed_ips": None, "quota": None}) == after


@pytest.mark.parametrize(
    ("sent", "only_protected"),
    [
        ({"primary_branch_only": True}, True),
        ({"protected_branches_only": True}, True),
        ({"protected_branches_only": False, "primary_branch_only": True}, False),
        ({"primary_branch_only": None}, False),
    ],
)
def test_the_older_name_of_protected_branches_only(
    api: DjangoClient, project: Project, sent: Any, only_protected: bool
) -> None:
    after = settings_after(api, project, {"allowed_ips": {**ALLOWED, **sent}})["allowed_ips"]
    assert after["protected_branches_only"] is after["primary_branch_only"] is only_protected


@pytest.mark.parametrize("sent", [{"protected_branches_only": True}, {"ips": None}, {}])
def test_allowed_ips_without_ips_keeps_the_list(
    api: DjangoClient, project: Project, sent: Any
) -> None:
    """To empty it would let in everybody."""
    only_protected = sent.get("protected_branches_only", False)
    for kept in ([], ALLOWED["ips"]):
        if kept:
            settings_after(api, project, {"allowed_ips": {"ips": kept}})
        after = settings_after(api, project, {"allowed_ips": sent})["allowed_ips"]
        assert (after["ips"], after["protected_branches_only"]) == (kept, only_protected)
    settings_after(api, project, {"allowed_ips": {"protected_branches_only": True}})
    after = settings_after(api, project, {"allowed_ips": {}})["allowed_ips"]
    assert (after["ips"], after["protected_branches_only"]) == (ALLOWED["ips"], True)


def test_returned_settings_can_be_sent_back(api: DjangoClient, project: Project) -> None:
    answered = settings_after(
        api, project, {"allowed_ips": ALLOWED, "quota": {"written_data_bytes": 7}}
    )
    count = Event.objects.count()
    assert settings_after(api, project, answered) == answered
    assert Event.objects.count() == count


def test_a_quota_that_stays_unlimited_is_not_recorded_as_changed(
    api: DjangoClient, project: Project
) -> None:
    """The console sends all quotas, and 0 for those that are empty."""
    quota = {"active_time_seconds": 7200, "compute_time_seconds": 0, "written_data_bytes": 0}
    settings_after(api, project, {"quota": quota})
    assert Event.objects.latest("id").changes == {
        "settings.quota.active_time_seconds": {"from": None, "to": 7200}
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"allowed_ips": {"ips": ["localhost"]}},
            '"localhost" is not a range of addresses: use an',
        ),
        ({"allowed_ips": {"ips": ["192.0.2.9-192.0.2.1"]}}, "it ends before it begins"),
        ({"allowed_ips": {"ips": ["192.0.2.1,"]}}, "project.settings.allowed_ips.ips.0"),
        ({"allowed_ips": {"ips": ["192.0.2.1"] * 201}}, "at most 200 items"),
        ({"allowed_ips": ["192.0.2.1"]}, "project.settings.allowed_ips"),
        ({"quota": {"active_time_seconds": -1}}, "project.settings.quota.active_time_seconds"),
        ({"quota": {"active_time_seconds": 2**63}}, "project.settings.quota.active_time_seconds"),
        ({"quota": {"logical_size_bytes": True}}, "project.settings.quota.logical_size_bytes"),
        ({"block_public_connections": "perhaps"}, "project.settings.block_public_connections"),
        ({"enable_logical_replication": 7}, "project.settings.enable_logical_replication"),
        ([], "project.settings"),
    ],
)
def test_invalid_settings(api: DjangoClient, project: Project, settings: Any, words: str) -> None:
    response = send(api, project, settings)
    assert (response.status_code, words in response.json()["message"]) == (400, True)
    project.refresh_from_db()
    assert project.settings == {}


def test_settings_without_effect_are_accepted(api: DjangoClient, project: Project) -> None:
    for level in ("base", None):
        sent = {"block_vpc_connections": False, "hipaa": False, "audit_log_level": level}
        assert settings_after(api, project, sent) == {}


def test_logical_replication_cannot_be_disabled(api: DjangoClient, project: Project) -> None:
    assert settings_after(api, project, {"enable_logical_replication": False}) == {
        "enable_logical_replication": False
    }
    for _ in range(2):
        after = settings_after(api, project, {"enable_logical_replication": True})
        assert after == {"enable_logical_replication": True}
    response = send(api, project, {"enable_logical_replication": False})
    assert response.status_code == 422
    assert "cannot be disabled once it has been enabled" in response.json()["message"]


class TestDurability:
    """`region` needs a second host, a store on both, and history."""

    @pytest.fixture
    def second(self, host: Host) -> Host:
        Host.objects.filter(id=host.id).update(history_store={"behind_branches": 0})
        return make_host("second", host.region_id, history_store={"behind_branches": 0})

    def refused(self, api: DjangoClient, project: Project, words: str, **attributes: Any) -> None:
        body = {"settings": {"durability": "region"}, **attributes}
        response = api.generic(
            "PATCH",
            f"/api/v2/projects/{project.id}",
            json.dumps({"project": body}),
            content_type="application/json",
        )
        assert response.status_code == 422
        (error,) = response.json()["errors"]
        assert error["field"] == "project.settings.durability"
        assert words in error["message"]
        project.refresh_from_db()
        assert project.settings == {}

    def test_it_works(self, api: DjangoClient, project: Project, second: Host) -> None:
        sent = {"durability": "region"}
        assert settings_after(api, project, sent) == sent
        project.refresh_from_db()
        assert project.waits_for_second_host
        assert settings_after(api, project, {"durability": "host"}) == {"durability": "host"}
        project.refresh_from_db()
        assert not project.waits_for_second_host

    def test_one_host_is_not_enough(self, api: DjangoClient, project: Project) -> None:
        self.refused(api, project, 'the region "local" has only one host')

    def test_a_lost_host_does_not_count(
        self, api: DjangoClient, project: Project, second: Host
    ) -> None:
        Host.objects.filter(id=second.id).update(lost_at=second.worker_seen_at or clock.now())
        self.refused(api, project, 'the region "local" has only one host')

    @pytest.mark.parametrize("without", ["local", "second"])
    def test_both_need_a_store(
        self, api: DjangoClient, project: Project, second: Host, without: str
    ) -> None:
        Host.objects.filter(id=without).update(history_store={})
        self.refused(api, project, "PERCH_HISTORY_STORE")

    def test_it_needs_history(self, api: DjangoClient, project: Project, second: Host) -> None:
        self.refused(api, project, "must keep history", history_retention_seconds=0)
