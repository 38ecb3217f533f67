"""Regions, as callers see them, and what they say of themselves."""

from controlplane.models import Region


def list_regions() -> list[Region]:
    """All of them, the default first."""
    return list(Region.objects.order_by("-default", "id"))


def certificate_authorities() -> str:
    """In PEM, one after the other, what clients are to trust who verify the certificates of the
    regions' proxies; "" where operators bring certificates of their own."""
    published = Region.objects.exclude(certificate_authority="").order_by("-default", "id")
    authorities = published.values_list("certificate_authority", flat=True)
    return "".join(dict.fromkeys(authorities))


def publish_certificate_authority(region_id: str, pem: str) -> None:
    """Said by the region's proxy; "" where its operator brings a certificate."""
    said = Region.objects.filter(id=region_id).exclude(certificate_authority=pem)
    said.update(certificate_authority=pem)
