"""`/healthz`: whether the service can do its work, for whoever watches it."""

from datetime import timedelta

from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.utils import timezone

from controlplane.services.regions import list_regions

# The worker and the proxy say every few seconds that they are there.
SILENT_AFTER = timedelta(seconds=15)


def healthz(request: HttpRequest) -> JsonResponse:
    """200 once the database, and every region's worker and proxy answer; else 503, naming
    what does not."""
    missing = []
    try:
        regions = list_regions()
    except Error:
        regions, missing = [], ["database"]
    else:
        heard_since = timezone.now() - SILENT_AFTER
        seen = {
            "worker": [region.worker_seen_at for region in regions],
            "proxy": [region.proxy_seen_at for region in regions],
        }
        for process, times in seen.items():
            if not times or any(time is None or time < heard_since for time in times):
                missing.append(process)
    if missing:
        return JsonResponse({"status": "unavailable", "missing": missing}, status=503)
    return JsonResponse({"status": "ok"})
