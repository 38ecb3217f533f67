"""Regions for callers, and the certificate authorities that their proxies publish."""

from controlplane.models import Host, Region


def list_regions() -> list[Region]:
    """All regions with their hosts, the default first."""
    return list(Region.objects.order_by("-default", "id").prefetch_related("hosts"))


def list_hosts() -> list[Host]:
    """All hosts, those of the default region first."""
    return list(Host.objects.order_by("-region__default", "region", "id"))


def certificate_authorities() -> str:
    """The certificate authorities that clients must trust to verify the certificates of the
    regions' proxies, concatenated in PEM; "" if operators provide all certificates."""
    published = Host.objects.exclude(certificate_authority="").order_by("-region__default", "id")
    authorities = published.values_list("certificate_authority", flat=True)
    return "".join(dict.fromkeys(authorities))


def publish_certificate_authority(host_id: str, pem: str) -> None:
    """Store the certificate authority of the host's proxy, in PEM; "" if the operator provides
    the certificate."""
    changed = Host.objects.filter(id=host_id).exclude(certificate_authority=pem)
    changed.update(certificate_authority=pem)


def publish_peer(host_id: str, *, address: str, port: int, certificate: str) -> None:
    """Store where the proxies of the region's other hosts reach the host's proxy, and the
    certificate, in PEM, by which they and it recognize each other."""
    values = {"peer_address": address, "peer_port": port, "peer_certificate": certificate}
    Host.objects.filter(id=host_id).exclude(**values).update(**values)
