"""Regions for callers, and the certificate authorities that their proxies publish."""

from controlplane.models import Region


def list_regions() -> list[Region]:
    """All regions, the default first."""
    return list(Region.objects.order_by("-default", "id"))


def certificate_authorities() -> str:
    """The certificate authorities that clients must trust to verify the certificates of the
    regions' proxies, concatenated in PEM; "" if operators provide all certificates."""
    published = Region.objects.exclude(certificate_authority="").order_by("-default", "id")
    authorities = published.values_list("certificate_authority", flat=True)
    return "".join(dict.fromkeys(authorities))


def publish_certificate_authority(region_id: str, pem: str) -> None:
    """Store the certificate authority of the region's proxy, in PEM; "" if the operator provides
    the certificate."""
    changed = Region.objects.filter(id=region_id).exclude(certificate_authority=pem)
    changed.update(certificate_authority=pem)
