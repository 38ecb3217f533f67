"""The servers that this console may be used with: only those that its operator has named.

If users could type an address, they could make the console send requests to whatever it can reach.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings


@dataclass(frozen=True)
class Server:
    # As stored in sessions; "" for the server of MANAGEMENT_API_URL.
    name: str
    url: str

    @property
    def shown_name(self) -> str:
        return self.name or urlsplit(self.url).netloc


def servers() -> list[Server]:
    """Return all servers, that of MANAGEMENT_API_URL first."""
    others = settings.OTHER_SERVERS.items()
    return [default_server(), *(Server(name, url) for name, url in others)]


def default_server() -> Server:
    return Server("", settings.MANAGEMENT_API_URL)


def find_server(name: str) -> Server | None:
    """Return the server of that name; None if the operator does not, or no longer, name it."""
    return next((server for server in servers() if server.name == name), None)
