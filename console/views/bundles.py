"""Serves the console's stylesheet, script and icon."""

from csp.decorators import csp_exempt
from django.http import HttpResponse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from console.bundles import bundle
from console.middleware import public
from console.request import ConsoleRequest

A_YEAR = 365 * 24 * 3600


# The content security policy applies to pages, not to styles and scripts.
@public
@csp_exempt()  # type: ignore[arg-type] # it passes on whatever it is given
@require_safe
def show(request: ConsoleRequest, name: str) -> HttpResponse:
    """Answer with the shortest encoding that the browser accepts; all are compressed beforehand."""
    found = bundle(name)
    understood = {part.partition(";")[0].strip() for part in _accepted(request).split(",")}
    encoding, content = next(
        (packed for packed in found.packed if packed[0] in understood), ("", found.content)
    )
    answer = HttpResponse(content, content_type=found.content_type)
    if encoding:
        answer["Content-Encoding"] = encoding
    patch_vary_headers(answer, ["Accept-Encoding"])
    is_this = request.GET.get("v") == found.fingerprint
    # During an upgrade, the address may be another version's. This content is not cached for it.
    answer["Cache-Control"] = f"max-age={A_YEAR}, public, immutable" if is_this else "no-store"
    return answer


def _accepted(request: ConsoleRequest) -> str:
    return request.headers.get("Accept-Encoding", "")
