"""The certificate authorities that clients should trust, as the regions' proxies publish them."""

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client as DjangoClient

from controlplane.models import Host
from controlplane.services.regions import publish_certificate_authority
from tests.controlplane.rows import make_host

ADDRESS = "/certificate-authority.pem"
ONE, OTHER = (f"-----BEGIN CERTIFICATE-----\n{name}\n" for name in ("one", "other"))


def test_the_authorities_of_all_hosts_are_listed_once_each(
    host: Host, client: DjangoClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, pem in (("east", OTHER), ("north", ONE), ("west", "")):
        make_host(name)
        publish_certificate_authority(name, pem)
    publish_certificate_authority(host.id, ONE)
    answer = client.get(ADDRESS)
    assert (answer.status_code, answer.content.decode()) == (200, ONE + OTHER)
    assert answer["Content-Type"] == "application/x-pem-file"
    call_command("certificate_authority")
    assert capsys.readouterr().out == ONE + OTHER


def test_without_an_authority_the_answer_is_404(host: Host, client: DjangoClient) -> None:
    publish_certificate_authority(host.id, ONE)
    # Its operator provides a certificate now.
    publish_certificate_authority(host.id, "")
    answer = client.get(ADDRESS)
    assert answer.status_code == 404
    assert "no host has a certificate authority of its own" in answer.json()["message"]
    with pytest.raises(CommandError, match="the operator provides the certificates"):
        call_command("certificate_authority")


def test_it_is_served_without_a_key(host: Host, client: DjangoClient) -> None:
    assert client.post(ADDRESS).status_code == 405
