"""`/hosts/join`: gives a new machine what `manage.py hosts add` has prepared for it."""

import orjson
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from controlplane.api.errors import error_response
from controlplane.services.host_invitations import take_invitation


@require_POST
def join_host(request: HttpRequest) -> HttpResponse:
    """Respond without authentication: who knows the invitation's name may take it, once, and only
    who has the whole token can read it. The body is {"invitation": NAME}."""
    try:
        name = orjson.loads(request.body)["invitation"]
    except (ValueError, KeyError, TypeError):
        return error_response(request, 400, 'the body must be {"invitation": NAME}')
    content = take_invitation(name) if isinstance(name, str) else None
    if content is None:
        return error_response(
            request, 404, "there is no such invitation, or it was used, or it has expired"
        )
    return JsonResponse({"content": content})
