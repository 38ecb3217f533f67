"""`/certificate-authority.pem`: what clients of the proxies trust who verify certificates."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.api.errors import error_response
from controlplane.services.regions import certificate_authorities

_NONE = (
    "no region has a certificate authority of its own: the certificates are the operator's, or no "
    "proxy has been started yet"
)


@require_safe
def certificate_authority(request: HttpRequest) -> HttpResponse:
    """To everybody, as it is no secret. 404 where there is none."""
    pem = certificate_authorities()
    if not pem:
        return error_response(request, 404, _NONE)
    return HttpResponse(pem, content_type="application/x-pem-file")
