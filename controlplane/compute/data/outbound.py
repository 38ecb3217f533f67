"""Decides which addresses a compute may connect to, if Perch runs as root: none of the host's and
none of its network except those that the operator names, and none at all if its project says so.

nftables enforces this, by the account number that owns a connection's socket. The table is named
after this state directory and holds only its accounts, so several Perch on one host, and other
filters, do not affect each other. It is written in one atomic step, and again whenever it is found
missing. A table left by a killed service affects nothing else; once its state directory is gone,
the next start of any Perch on the host removes it.
"""

import hashlib
import logging
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from django.conf import settings

from controlplane.address_ranges import NOT_PUBLIC_4, NOT_PUBLIC_6, PUBLIC_6
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.account_numbers import directories_by_number
from controlplane.compute.host.accounts import (
    account_of,
    account_range,
    locked_directory,
    shared_account,
)
from controlplane.process_accounts import acts_as_root, passing_capabilities

# Lists the tables of this host: links named after the tables, to their state directories.
TABLES = Path("/run/perch/tables")
RESOLVERS = Path("/etc/resolv.conf")
NFT_TIMEOUT = 10.0  # seconds
MAX_COMPLAINT_LENGTH = 150  # characters

RULES = """
table inet {table}
delete table inet {table}
table inet {table} {{
  set computes {{ type uid; {computes} }}
  set closed {{ type uid; {closed} }}
  chain output {{
    type filter hook output priority filter; policy accept;
    meta skuid @computes jump outbound
  }}
  chain outbound {{
    meta skuid @closed jump refuse
    {accepted}
    fib daddr type != unicast jump refuse
    ip daddr {{ {not_public_4} }} jump refuse
    ip6 daddr != {public_6} jump refuse
    ip6 daddr {{ {not_public_6} }} jump refuse
  }}
  chain refuse {{
    tcp flags & (syn | ack) != syn reject with tcp reset
    reject with icmpx admin-prohibited
  }}
}}
"""

log = logging.getLogger(__name__)
_lock = threading.Lock()


class OutboundNotBlocked(Exception):
    """A compute must not connect anywhere, and this host cannot enforce that."""


@dataclass
class _State:
    """What the table holds, as far as this process knows. `computes` is None if there is none."""

    computes: frozenset[int] | None = None
    closed: frozenset[int] = frozenset()
    # Why there is no table; "" if there is one.
    complaint: str = "not checked yet"


_state = _State()


def complaint() -> str:
    """Why computes' connections are not restricted on this host; "" if they are."""
    return _state.complaint


def hold_outbound(read_closed: Callable[[], Collection[str]]) -> None:
    """Make the table restrict the accounts of all branches of this host. Those of the branches that
    `read_closed` returns may connect nowhere, nor may those of branches that are being made."""
    with _lock:
        # Read here, so that none is opened again that was closed for a start since then.
        # What begins with a dot is being made: only the platform works there.
        closed = {"", *read_closed()}
        _state.complaint = _missing_program()
        if _state.complaint:
            _state.computes = None
            return
        branches = Path(settings.STATE_DIR) / "branches"
        found = directories_by_number(branches)
        computes = frozenset(number for number in found if number in account_range())
        shut = frozenset(
            number
            for number in computes
            if any(place.name.partition(".")[0] in closed for place in found[number])
        )
        if (computes, shut) != (_state.computes, _state.closed) or not _table_exists():
            _write(computes, shut)


def hold_compute(branch_id: str, *, closed: bool) -> None:
    """Do the same for one branch, before its compute starts. Raises OutboundNotBlocked."""
    if shared_account() is None and _state.computes is not None:
        number = account_of(branch_dir(branch_id)).uid
        with _lock:
            if _state.computes is not None:
                known = number in _state.computes and closed == (number in _state.closed)
                if not known:
                    others = _state.closed - {number}
                    _write(_state.computes | {number}, others | {number} if closed else others)
    if closed and _state.computes is None:
        raise OutboundNotBlocked(
            "the project has block_outbound_connections, which this host cannot enforce now"
        )


def release_outbound() -> None:
    """Remove the table, once no compute runs any more."""
    with _lock:
        # A table that cannot be removed now stays listed: the next start of any Perch finds it.
        with suppress(OSError, subprocess.SubprocessError):
            if (TABLES / _table()).is_symlink():
                _nft("delete", "table", "inet", _table())
                (TABLES / _table()).unlink()
        _state.computes = None


def _write(computes: frozenset[int], closed: frozenset[int]) -> None:
    try:
        _register_and_tidy()
        done = _nft("-f", "-", text=_rules(computes, closed))
        words = done.stderr.strip().splitlines()[:1] if done.returncode else []
        _state.complaint = f"nft: {words[0]}"[:MAX_COMPLAINT_LENGTH] if words else ""
    except (OSError, subprocess.SubprocessError) as error:
        _state.complaint = f"nft: {error}"[:MAX_COMPLAINT_LENGTH]
    _state.computes, _state.closed = (None, frozenset()) if _state.complaint else (computes, closed)


def _rules(computes: Iterable[int], closed: Iterable[int]) -> str:
    # Perch's own proxy, which leads to other computes; DNS; and what the operator allows.
    accepted = [f"{where} tcp dport {settings.PROXY_PORT} accept" for where in _of_proxy()]
    named = "meta l4proto { tcp, udp } th dport 53 accept"
    accepted += [f"{_to(address)} {named}" for address in _resolvers()]
    accepted += [f"{_to(str(network))} accept" for network in settings.COMPUTE_ALLOWED_NETWORKS]
    return RULES.format(
        table=_table(),
        computes=_elements(computes),
        closed=_elements(closed),
        accepted="\n    ".join(accepted),
        not_public_4=", ".join(map(str, NOT_PUBLIC_4)),
        public_6=PUBLIC_6,
        not_public_6=", ".join(map(str, NOT_PUBLIC_6)),
    )


def _of_proxy() -> list[str]:
    """Where the proxy listens: the port may be another service's at the host's other addresses, but
    not if the proxy has it at all of them. Nowhere if the proxy could not listen either."""
    found = []
    with suppress(socket.gaierror):
        for family, _, _, _, (text, *_) in socket.getaddrinfo(
            settings.PROXY_HOST, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            address = ip_address(str(text).partition("%")[0])
            kind = "ipv6" if family == socket.AF_INET6 else "ipv4"
            all_of_kind = f"meta nfproto {kind} fib daddr type local"
            found.append(all_of_kind if address.is_unspecified else _to(str(address)))
    return list(dict.fromkeys(found))


def _to(where: str) -> str:
    return f"{'ip6' if ':' in where else 'ip'} daddr {where}"


def _elements(numbers: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)))
    return f"elements = {{ {listed} }}" if listed else ""


def _resolvers() -> list[str]:
    found = []
    with suppress(OSError):
        for line in RESOLVERS.read_text(errors="replace").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                with suppress(ValueError):
                    found.append(str(ip_address(words[1].partition("%")[0])))
    return found


def _missing_program() -> str:
    if not acts_as_root():
        return "only root can block the connections of computes: run Perch as root"
    if shared_account() is not None:
        return "all computes share an account (PERCH_COMPUTE_ACCOUNT), which other programs may use"
    return "" if _program() else "nftables is not installed (apt-get install nftables)"


def _table_exists() -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        return _nft("list", "chain", "inet", _table(), "output").returncode == 0
    return False


def _register_and_tidy() -> None:
    """List the table for this state directory, and remove tables whose state directory is gone."""
    with locked_directory(TABLES):
        for note in TABLES.iterdir():
            if not note.readlink().is_dir():
                _nft("delete", "table", "inet", note.name)
                note.unlink()
        if not (TABLES / _table()).is_symlink():
            (TABLES / _table()).symlink_to(settings.STATE_DIR)


def _table() -> str:
    digest = hashlib.sha256(os.fsencode(settings.STATE_DIR)).hexdigest()
    return f"perch_{digest[:16]}"


def _program() -> str | None:
    return shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")


def _nft(*arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    program = _program()
    if program is None:
        raise FileNotFoundError("nftables is not installed")
    with passing_capabilities():
        return subprocess.run(
            [program, *arguments], input=text, capture_output=True, text=True, timeout=NFT_TIMEOUT
        )
