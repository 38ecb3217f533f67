"""`/certificate-authority.pem`: the certificate authorities that clients must trust to verify the
certificates of the regions' proxies."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.api.http.errors import error_response
from controlplane.services.hosts import certificate_authorities

_NONE = (
    "no host has a certificate authority of its own: the operator provides the certificates, "
    "or no proxy has been started yet"
)


@require_safe
def certificate_authority(request: HttpRequest) -> HttpResponse:
    """Respond without authentication, as the certificates are public. 404 if there are none."""
    pem = certificate_authorities()
    if not pem:
        return error_response(request, 404, _NONE)
    return HttpResponse(pem, content_type="application/x-pem-file")
