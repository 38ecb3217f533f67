"""The servers that this console may be used with: those that its operator names, and no other.

An address that a user could type would have the console ask whatever it can reach.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings


@dataclass(frozen=True)
class Server:
    # As sessions remember it; "" for the one of MANAGEMENT_API_URL.
    name: str
    url: str

    @property
    def shown_name(self) -> str:
        return self.name or urlsplit(self.url).netloc


def servers() -> list[Server]:
    """All of them, the one of MANAGEMENT_API_URL first."""
    others = settings.OTHER_SERVERS.items()
    return [default_server(), *(Server(name, url) for name, url in others)]


def default_server() -> Server:
    return Server("", settings.MANAGEMENT_API_URL)


def find_server(name: str) -> Server | None:
    """None where the operator does not, or no longer, name it."""
    return next((server for server in servers() if server.name == name), None)
