"""Answers to failures that Django detects: unknown addresses, stale forms, bugs. They show no
stack trace."""

from http import HTTPStatus

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.request import ConsoleRequest


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Plain text, because no page can be rendered for a host name that is not allowed.
    return HttpResponse(
        "Bad request. If you came by a host name of your own, name it in PERCH_ALLOWED_HOSTS.\n",
        content_type="text/plain; charset=utf-8",
        status=HTTPStatus.BAD_REQUEST,
    )


def not_found(request: ConsoleRequest, exception: Exception) -> HttpResponse:
    return _page(request, 404, "There is no such page", "The address may be mistyped.")


def server_error(request: ConsoleRequest) -> HttpResponse:
    advice = "This is a fault of the console itself. Nothing more than the page is lost."
    return _page(request, 500, "The console failed", advice)


def wrong_method(request: ConsoleRequest) -> HttpResponse:
    advice = "This address answers to a button. Go back and use the button there."
    return _page(request, 405, "There is no page here", advice)


def too_large(request: ConsoleRequest) -> HttpResponse:
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE >> 20
    advice = f"At most {most} MiB can be sent at once. Nothing of it was done."
    return _page(request, 413, "That is too much", advice)


def csrf_failure(request: ConsoleRequest, reason: str = "") -> HttpResponse:
    advice = (
        "The form was open too long, or cookies are switched off. Go back, reload the page, and "
        "send it again."
    )
    return _page(request, 403, "This form is out of date", advice)


def _page(request: ConsoleRequest, status: int, title: str, advice: str) -> HttpResponse:
    if getattr(request, "htmx", None) and hasattr(request, "_messages"):
        messages.error(request, f"{title}. {advice}")
        answer = render(request, "_notices.html", status=status)
        answer["HX-Reswap"] = "none"
        return answer
    return render(request, "lost.html", {"title": title, "advice": advice}, status=status)
