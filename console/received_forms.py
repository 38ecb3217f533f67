"""Receives each form before anything is done for it, within the bounds of its page. Parsing takes
the one thread that serves all users, so what exceeds the bounds is refused unparsed."""

from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpResponse, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError
from django.utils.datastructures import MultiValueDict
from django.utils.deprecation import MiddlewareMixin

from console.memory import MemoryExhausted
from console.pages.problems import ask_to_sign_in, refuse
from console.request import ConsoleRequest, View
from console.sign_in import sessions

MULTIPART = "multipart/form-data"
# Bytes and fields of a form for a page that is public, or from somebody who is not signed in: the
# forms for signing in have ten fields at most. A longer form is lost if the session has ended.
SMALL_FORM_BYTES, SMALL_FORM_FIELDS = 16 << 10, 100
# Fields of another form, unless its view is marked.
MAX_FIELDS = 1_000
# Parts of a form with a file, which has five of them.
MAX_PARTS = 100


class TooManyParts(MultiPartParserError):
    """The form has more than MAX_PARTS parts."""


class FewParts(FileUploadHandler):
    """Counts the parts before they are parsed: Django counts those with a name only."""

    def handle_raw_input(
        self,
        input_data: Any,
        META: dict[str, Any],  # noqa: N803 # Django names it so.
        content_length: int,
        boundary: Any,  # bytes, though Django's types say str
        encoding: str | None = None,
    ) -> tuple[QueryDict, MultiValueDict[str, Any]]:
        """Return the fields and the files. Raises TooManyParts."""
        data = input_data.read(content_length)
        if data.count(b"--" + boundary) > MAX_PARTS:
            raise TooManyParts
        assert self.request is not None
        others = [one for one in self.request.upload_handlers if one is not self]
        return MultiPartParser(META, BytesIO(data), others, encoding).parse()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        return raw_data

    def file_complete(self, file_size: int) -> None:
        return None


class ReceivedFormMiddleware(MiddlewareMixin):
    """Comes before all that reads the form. A form for an address without a page is not read."""

    def process_view(
        self, request: ConsoleRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        if request.method != "POST":
            return None
        try:
            if request.content_type == MULTIPART:
                return _receive_file(request, view)
            return _receive_fields(request, view)
        except UnreadablePostError:
            advice = (
                "The form did not arrive whole and in time. Nothing was changed. Send it again."
            )
            return refuse(request, 408, "Request incomplete", advice)


def _receive_file(request: ConsoleRequest, view: View) -> HttpResponse | None:
    if not getattr(view, "receives_file", False):
        advice = (
            "This page expects a form without a file. Nothing was changed. Reload the page and "
            "send the form again."
        )
        return refuse(request, 415, "Unexpected file", advice)
    if sessions.present(request) is None:
        return ask_to_sign_in(request)
    if _length(request) > settings.LONGEST_IMPORT:
        return _too_large(request, settings.LONGEST_IMPORT)
    request.upload_handlers.insert(0, FewParts(request))
    try:
        request.memory.grow(2 * _length(request))
        request.POST  # noqa: B018 # The form is received now.
    except MemoryExhausted:
        advice = "The console has no memory for this file now. Nothing was changed. Send it later."
        return refuse(request, 503, "Too busy", advice)
    except TooManyParts:
        return _too_many_fields(request, MAX_PARTS)
    return None


def _receive_fields(request: ConsoleRequest, view: View) -> HttpResponse | None:
    is_public = getattr(view, "public", False)
    longest, most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE, getattr(view, "most_fields", MAX_FIELDS)
    if _length(request) > longest and not is_public:
        return _too_large(request, longest)
    is_small = _length(request) <= SMALL_FORM_BYTES and request.body.count(b"&") < SMALL_FORM_FIELDS
    if not is_small:
        if is_public:
            return _too_large(request, SMALL_FORM_BYTES, SMALL_FORM_FIELDS)
        if sessions.present(request) is None:
            return ask_to_sign_in(request)
        if request.body.count(b"&") >= most:
            return _too_many_fields(request, most)
    request.POST  # noqa: B018 # The form is received now.
    return None


def _too_large(request: ConsoleRequest, longest: int, most_fields: int = 0) -> HttpResponse:
    """Refuse a request of more than `longest` bytes or, for a form, `most_fields` fields."""
    size = f"{longest >> 20} MiB" if longest >> 20 else f"{longest >> 10} KiB"
    fields = f" and {most_fields} fields" if most_fields else ""
    advice = f"Requests can have at most {size}{fields}. Nothing was changed."
    return refuse(request, 413, "Request too large", advice)


def _too_many_fields(request: ConsoleRequest, most: int) -> HttpResponse:
    advice = f"This form can have at most {most:,} fields. Nothing was changed."
    return refuse(request, 413, "Request too large", advice)


def _length(request: ConsoleRequest) -> int:
    return int(request.META.get("CONTENT_LENGTH") or 0)
