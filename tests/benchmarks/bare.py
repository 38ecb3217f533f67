"""Django without Perch's code, for gunicorn: the least cost of the API's answers. It answers with
the bytes of the file that BENCHMARK_ANSWER names."""

import os
from pathlib import Path

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="-", USE_TZ=True)
ANSWER = Path(os.environ["BENCHMARK_ANSWER"]).read_bytes()
HEADERS = {"Content-Length": str(len(ANSWER))}


def from_memory(request: HttpRequest) -> HttpResponse:
    return HttpResponse(ANSWER, content_type="application/json", headers=HEADERS)


urlpatterns = [path("", from_memory)]
application = get_wsgi_application()
