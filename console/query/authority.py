"""TLS to the service's proxy. The console trusts the service's own certificate authority besides
the system's; the API serves its certificate."""

import logging
import ssl
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import requests
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from console.api.bounded_http import BoundedAdapter, environment_for, proxies_for, read_whole
from console.api.transport import Server

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5
# Seconds for which the service's certificate authority is cached.
AUTHORITY_TTL = 300
# The path of the management API. The service's certificate authority is beside it.
API_PATH = "/api/v2"


class _Trusting(BoundedAdapter):
    """Trusts the service's own certificate authority besides the system's."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **named)

    # The context has the authorities. requests would read its own again for each connection.

    def build_connection_pool_key_attributes(self, request: Any, *given: Any) -> Any:
        return super().build_connection_pool_key_attributes(request, verify=True)

    def cert_verify(self, conn: Any, *given: Any) -> None:
        conn.cert_reqs = "CERT_REQUIRED"


def session_for(server: Server) -> requests.Session:
    """Return a session for requests to the proxy that belongs to this server."""
    session = requests.Session()
    # True stands for the authorities that come with requests.
    given = environment_for(server.url)["verify"]
    bundle = DEFAULT_CA_BUNDLE_PATH if given is True else given
    session.mount("https://", _Trusting(_context(authority(server), bundle)))
    return session


# It takes longer to read the authorities than to show a page.
@lru_cache(maxsize=16)
def _context(pem: str, bundle: str) -> ssl.SSLContext:
    """Trust the system's authorities, those at the path `bundle`, and those of `pem`."""
    context = ssl.create_default_context()
    if Path(bundle).is_dir():
        context.load_verify_locations(capath=bundle)
    else:
        context.load_verify_locations(bundle)
    if pem:
        try:
            context.load_verify_locations(cadata=pem)
        except ssl.SSLError as error:
            log.warning("a service's authority cannot be read", extra={"error": error.reason})
    return context


# By server's address: the PEM found there, and when, a time of time.monotonic().
_authorities: dict[str, tuple[str, float]] = {}


def authority(server: Server) -> str:
    """Return the service's certificate authority in PEM. It is "" if the operator uses other
    certificates."""
    pem, found_at = _authorities.get(server.url, ("", float("-inf")))
    if time.monotonic() - found_at < AUTHORITY_TTL:
        return pem
    url = f"{server.url.removesuffix(API_PATH)}/certificate-authority.pem"
    with requests.Session() as session:
        session.mount("http://", BoundedAdapter())
        session.mount("https://", BoundedAdapter())
        try:
            answer = session.get(
                url,
                timeout=CONNECT_TIMEOUT,
                stream=True,
                proxies=proxies_for(url),
                allow_redirects=False,
            )
            with answer:
                pem = (
                    read_whole(answer, longest=1 << 20).decode("ascii")
                    if answer.status_code == 200
                    else ""
                )
        except (requests.RequestException, ValueError) as error:
            log.warning("no authority", extra={"url": url, "error": type(error).__name__})
            return pem
    _authorities[server.url] = pem, time.monotonic()
    return pem
