"""Django without Perch's code, for gunicorn: the least cost of the API's answers. It answers with
the bytes of the file that BENCHMARK_ANSWER names, and with the row of a project, from the database
in the directory BENCHMARK_DATABASE."""

import os
from pathlib import Path

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ["BENCHMARK_DATABASE"],
    "NAME": "perch",
    "USER": "perch",
    "CONN_MAX_AGE": None,
}
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": DATABASE},
    ROOT_URLCONF=__name__,
    SECRET_KEY="-",
    USE_TZ=True,
)
ANSWER = Path(os.environ["BENCHMARK_ANSWER"]).read_bytes()
HEADERS = {"Content-Length": str(len(ANSWER))}


def from_memory(request: HttpRequest) -> HttpResponse:
    return HttpResponse(ANSWER, content_type="application/json", headers=HEADERS)


def row(request: HttpRequest, project_id: str) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT row_to_json(one)::text FROM controlplane_project one WHERE id = %s",
            [project_id],
        )
        (found,) = cursor.fetchone() or ("",)
    return HttpResponse(found, content_type="application/json")


urlpatterns = [path("", from_memory), path("row/<project_id>", row)]
application = get_wsgi_application()
