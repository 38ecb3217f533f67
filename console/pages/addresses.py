"""Addresses within the console: of things, and of the page that a request came from."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.urls import NoReverseMatch
from django.utils.http import url_has_allowed_host_and_scheme

from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.request import ConsoleRequest
from console.templatetags.console_tags import address


def url_or_none(name: str, *ids: str) -> str:
    """Return the page's address; "" if an id, of a server that makes other ids, cannot be in it."""
    try:
        return address(name, *ids)
    except NoReverseMatch:
        return ""


def with_query(url: str, query: str) -> str:
    return f"{url}?{query}" if query else url


@dataclass(frozen=True)
class Existing:
    """The ids of the endpoints and branches that exist now; None if the page has not read them."""

    endpoints: frozenset[str] | None = None
    branches: frozenset[str] | None = None

    @classmethod
    def of(
        cls, endpoints: Iterable[Endpoint] | None, branches: Iterable[Branch] | None
    ) -> "Existing":
        return cls(
            endpoints=None if endpoints is None else frozenset(one.id for one in endpoints),
            branches=None if branches is None else frozenset(one.id for one in branches),
        )

    def has_gone(self, kind: str, thing_id: str) -> bool:
        """Whether the "endpoint" or "branch" does not exist any more."""
        known = self.endpoints if kind == "endpoint" else self.branches
        return known is not None and thing_id not in known


NOT_READ = Existing()


def back(request: ConsoleRequest, otherwise: str) -> str:
    """Return the address that the form names as its origin, if it is within this site."""
    came_from = request.POST.get("next") or request.GET.get("next") or ""
    return came_from if is_own_url(request, came_from) else otherwise


def is_own_url(request: ConsoleRequest, url: str) -> bool:
    return url.startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)


def page_shown(request: ConsoleRequest) -> str:
    """Return the page that the browser shows: neither a fragment nor a button's address."""
    if request.htmx:
        return request.htmx.current_url_abs_path or "/"
    if request.method == "GET":
        return request.get_full_path()
    referer = urlsplit(request.headers.get("Referer", ""))
    is_own = referer.netloc == request.get_host()
    return referer._replace(scheme="", netloc="").geturl() if is_own else "/"
