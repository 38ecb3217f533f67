"""The addresses from which an endpoint's clients may connect, by its project's settings. They are
read once with the endpoint's route, and checked for each connection."""

import json
import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from controlplane.address_ranges import Address, AddressRange, parse_address, parse_range
from controlplane.proxy.wire.errors import AddressNotAllowed, PublicAddressRefused

log = logging.getLogger(__name__)

# Ranges that no client on the Internet connects from: this host, private networks, link-local
# networks, and the shared range of carriers and overlay networks.
_PRIVATE = [
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "::1",
    "fc00::/7",
    "fe80::/10",
]


@dataclass(frozen=True, slots=True)
class AddressSet:
    """A set of any number of address ranges; looked up by binary search."""

    # The first addresses of disjoint ranges in order, and their last addresses; see `_number_of`.
    _starts: tuple[int, ...]
    _ends: tuple[int, ...]

    @classmethod
    def of(cls, ranges: Iterable[AddressRange]) -> "AddressSet":
        starts: list[int] = []
        ends: list[int] = []
        for first, last in sorted((_number_of(one.first), _number_of(one.last)) for one in ranges):
            if ends and first <= ends[-1] + 1:
                ends[-1] = max(ends[-1], last)
            else:
                starts.append(first)
                ends.append(last)
        return cls(tuple(starts), tuple(ends))

    def __contains__(self, address: Address) -> bool:
        number = _number_of(address)
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number <= self._ends[place]


def _number_of(address: Address) -> int:
    """Returns the address as a number that no address of the other IP version has."""
    return address.version << 128 | int(address)


@dataclass(frozen=True, slots=True)
class AccessRules:
    # None allows every address.
    allowed: AddressSet | None
    blocks_public: bool

    def check(self, address: str) -> None:
        """Raises AddressNotAllowed, PublicAddressRefused."""
        found = parse_address(address)
        if self.blocks_public and found not in _PRIVATE_ADDRESSES:
            raise PublicAddressRefused
        if self.allowed is not None and found not in self.allowed:
            raise AddressNotAllowed(str(found))

    def allows(self, address: str) -> bool:
        try:
            self.check(address)
        except (AddressNotAllowed, PublicAddressRefused):
            return False
        return True


@lru_cache(maxsize=1024)
def parse_rules(text: str, *, is_protected: bool) -> AccessRules | None:
    """Parses the project's settings `allowed_ips` and `block_public_connections`, given as JSON,
    for a branch that is protected or not. Returns None if every address is allowed. The result is
    cached, because every connection asks for it."""
    settings = json.loads(text)
    allowed_ips = settings.get("allowed_ips")
    # Rows from before these settings were validated may hold any value.
    if not isinstance(allowed_ips, Mapping):
        allowed_ips = {}
    texts = allowed_ips.get("ips") or []
    only_protected = allowed_ips.get("protected_branches_only") or allowed_ips.get(
        "primary_branch_only"
    )
    is_restricted = bool(texts) and (is_protected or not only_protected)
    blocks_public = bool(settings.get("block_public_connections"))
    if not is_restricted and not blocks_public:
        return None
    allowed = _set_of(tuple(map(str, texts))) if is_restricted else None
    return AccessRules(allowed, blocks_public)


# A list is parsed again for each role, and whenever an endpoint of its project changes.
@lru_cache(maxsize=1000)
def _set_of(texts: tuple[str, ...]) -> AddressSet:
    """Parses the ranges. An unreadable range allows no address: ignoring a list would allow all."""
    found = []
    for text in texts:
        try:
            found.append(parse_range(text))
        except ValueError as error:
            log.error("cannot parse an address range", extra={"error": str(error)})
    return AddressSet.of(found)


_PRIVATE_ADDRESSES = AddressSet.of(map(parse_range, _PRIVATE))
