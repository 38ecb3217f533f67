"""What `up` prints once the service runs: its addresses, and how to sign in."""

import logging
import re
import shlex
from collections.abc import Mapping

from django.conf import settings

from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.pooler import pgbouncer, pooler_version
from controlplane.compute.settings.pooler_settings import KEEPS_PREPARED_STATEMENTS
from controlplane.process_accounts import in_use
from controlplane.running.sign_in_links import make_sign_in_link, note_console_address

log = logging.getLogger(__name__)


def greeting(host: str, ports: Mapping[str, int]) -> str:
    key_file = settings.STATE_DIR / "api-key"
    console = f"http://{reachable(host)}:{ports['console']}"
    api = f"http://{reachable(host)}:{ports['api']}/api/v2"
    return f"""
Perch is up.

  Console  {console}
           {_how_to_sign_in(console)}sign in with the API key in {key_file}
  API      {api}
           In a shell: export PERCH_API={api} PERCH_API_KEY=$(cat {shlex.quote(str(key_file))})
  Postgres {reachable(host)}:{ports["proxy"]}, as the console shows for each endpoint
           {_trust(host, ports)}{_pooling()}{_metrics()}

Ctrl-C stops everything; the next `up` finds it as it was."""


def reachable(host: str) -> str:
    """An address at which the service can be reached from this host."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - compared, not bound


def _how_to_sign_in(console_url: str) -> str:
    """A sign-in link for the greeting; "" if none can be made, as `up` works on a full disk."""
    try:
        note_console_address(console_url)
        link = make_sign_in_link(console_url)
    except OSError as error:
        log.warning("no sign-in link", extra={"error": str(error)})
        return ""
    return (
        f"sign in, once and within 10 minutes: {link}\n"
        f"           (`{settings.PROGRAM} sign_in_link` prints another link), or "
    )


def _trust(host: str, ports: Mapping[str, int]) -> str:
    if settings.TLS_CERTIFICATE:
        return f"with the certificate of {settings.TLS_CERTIFICATE}"
    url = f"http://{reachable(host)}:{ports['api']}/certificate-authority.pem"
    return f"sslmode=verify-full trusts {url}"


def _pooling() -> str:
    """Lines of the greeting about what pooled clients on this host cannot use."""
    program = pgbouncer()
    if program is None:
        return "\n  Pooling  none: PgBouncer is not installed (apt-get install pgbouncer)"
    version = pooler_version(program)
    if version >= KEEPS_PREPARED_STATEMENTS:
        return ""
    return (
        f"\n  Pooling  without prepared statements, which this PgBouncer {version[0]}.{version[1]} "
        f"does not keep;\n           `{settings.PROGRAM} install_pgbouncer` builds one that does "
        "(docs/how-to/pooling.md)"
    )


def _metrics() -> str:
    """The line of the greeting with the address at which Prometheus gets the figures."""
    # The account of the process that writes it may have put something else in its place.
    place = settings.METRICS_DIR / "address" if in_use() else settings.METRICS_ADDRESS_FILE
    found = re.fullmatch("(http://\\S+)\n", read_regular(place, 200).decode(errors="replace"))
    return f"\n  Metrics  {found[1]}" if found else ""
