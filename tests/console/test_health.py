"""`/healthz` of the console says whether its own process works."""

from django.test import Client


def test_it_answers_under_any_host_name_and_without_the_api() -> None:
    answer = Client().get("/healthz", headers={"Host": "10.1.2.3:8000"})
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer.headers["Cache-Control"] == "no-store"
