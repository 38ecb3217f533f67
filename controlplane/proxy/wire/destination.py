"""Finds the endpoint that a client asks for: in the first label of the host name in TLS's SNI, in
`endpoint=` in its `options`, or in front of its password (specification, section 10). Converts the
start-up parameters for the endpoint's compute or pooler."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.proxy.wire.errors import (
    ForeignServerName,
    HistoryNotKept,
    InconsistentEndpoint,
    MalformedEndpoint,
    MissingEndpoint,
    OptionThroughPooler,
    ProxyError,
    ReplicationThroughPooler,
    UnreadableParameter,
)

_POOLER_SUFFIX = "-pooler"
# Postgres splits `options` likewise: at whitespace that no backslash escapes.
_OPTION = re.compile(rb"(?:\\.|[^\s\\])+", re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ENDPOINT_OPTION = re.compile(rb"(?:endpoint|project)=(.*)", re.DOTALL)
# The options that neonctl sends for `connection-string branch@timestamp` and `branch@lsn`.
_MOMENT_OPTION = re.compile(rb"(neon_(?:timestamp|lsn)):.*", re.DOTALL)
_ENDPOINT_IN_PASSWORD = re.compile(
    rb"(?:endpoint|project)=(?P<name>[A-Za-z0-9-]{1,63})[;$](?P<password>.*)", re.DOTALL
)
_ENDPOINT_ID = re.compile(r"[A-Za-z0-9-]{1,63}")

# The values that Postgres reads as false; any other asks for a replication connection or is wrong.
_NO = (b"false", b"off", b"no", b"0", b"f", b"n")
# The parameters that PgBouncer applies for its client to each server connection.
APPLIED_BY_POOLER = (
    b"DateStyle",
    b"IntervalStyle",
    b"TimeZone",
    b"application_name",
    b"client_encoding",
    b"standard_conforming_strings",
)
# The parameters that a client of the pooler may send, in lower case. PgBouncer ignores
# extra_float_digits.
_ACCEPTED_BY_POOLER = {name.lower() for name in APPLIED_BY_POOLER} | {
    b"user",
    b"database",
    b"extra_float_digits",
}
# The bytes that Postgres replaces in an application name.
_NOT_PRINTABLE = re.compile(rb"[^ -~]")


@dataclass(frozen=True, slots=True)
class Destination:
    endpoint_id: str
    pooled: bool
    # The start-up parameters for the compute, with the endpoint removed from `options`.
    parameters: dict[bytes, bytes]

    def with_pooler(self, always: bool) -> "Destination":
        """Returns the destination for an endpoint whose plain host `always` leads to the pooler. A
        client that asks for what no pooler can keep still gets a session of its own there."""
        if self.pooled or not always or _needs_session(self.parameters):
            return self
        return replace(self, pooled=True)


def find_destination(
    parameters: dict[bytes, bytes], *, server_name: str | None, domains: Sequence[str]
) -> Destination:
    """Reads the endpoint from the host name in TLS's SNI (`server_name`) or from `options`.

    Endpoints have host names one label below each of the `domains`. Another host name names none.
    It is accepted beside an option that names one, so a client can connect through a tunnel or an
    alias. Raises HistoryNotKept, MissingEndpoint, ForeignServerName, InconsistentEndpoint or
    MalformedEndpoint.
    """
    _refuse_moments(parameters)
    named_by_option, parameters = _take_endpoint_option(parameters)
    named_by_sni = _first_label(server_name, domains) if server_name else None
    if named_by_option is None and named_by_sni is None:
        if server_name and not _is_within(server_name, domains):
            raise ForeignServerName(server_name)
        raise MissingEndpoint
    for name in (named_by_option, named_by_sni):
        if name is not None and not _ENDPOINT_ID.fullmatch(name):
            raise MalformedEndpoint(name)

    given = [name.lower() for name in (named_by_sni, named_by_option) if name is not None]
    endpoint_ids = {name.removesuffix(_POOLER_SUFFIX) for name in given}
    if len(endpoint_ids) > 1:
        raise InconsistentEndpoint(sni=given[0], option=given[1])
    return Destination(
        endpoint_id=endpoint_ids.pop(),
        pooled=any(name.endswith(_POOLER_SUFFIX) for name in given),
        parameters=parameters,
    )


def endpoint_named_by(server_name: str | None, domains: Sequence[str]) -> str | None:
    """Returns the id of the endpoint that the host name in TLS's SNI names; None if it names
    none."""
    try:
        return find_destination({}, server_name=server_name, domains=domains).endpoint_id
    except ProxyError:
        return None


def find_in_password(
    password: bytes, parameters: dict[bytes, bytes]
) -> tuple[Destination, bytes] | None:
    """Parses `endpoint=<id>;<password>` or `endpoint=<id>$<password>`. Returns the destination and
    the password, or None for any other form. The caller must not log or report any of it, because
    all of it may be a password."""
    match = _ENDPOINT_IN_PASSWORD.fullmatch(password)
    if match is None:
        return None
    name = match["name"].decode().lower()
    _, parameters = _take_endpoint_option(parameters)
    destination = Destination(
        endpoint_id=name.removesuffix(_POOLER_SUFFIX),
        pooled=name.endswith(_POOLER_SUFFIX),
        parameters=parameters,
    )
    return destination, match["password"]


def _refuse_moments(parameters: dict[bytes, bytes]) -> None:
    for option in _OPTION.findall(parameters.get(b"options", b"")):
        if match := _MOMENT_OPTION.fullmatch(option):
            raise HistoryNotKept(match[1].decode())


def _take_endpoint_option(
    parameters: dict[bytes, bytes],
) -> tuple[str | None, dict[bytes, bytes]]:
    """Returns the endpoint that `options` names, and the parameters without it. If `options` names
    more than one endpoint, the result is None."""
    options = _OPTION.findall(parameters.get(b"options", b""))
    named = [match[1] for option in options if (match := _ENDPOINT_OPTION.fullmatch(option))]
    if not named:
        return None, parameters
    rest = [option for option in options if not _ENDPOINT_OPTION.fullmatch(option)]
    parameters = {name: value for name, value in parameters.items() if name != b"options"}
    if rest:
        parameters[b"options"] = b" ".join(rest)
    return named[0].decode(errors="replace") if len(named) == 1 else None, parameters


def _first_label(server_name: str, domains: Sequence[str]) -> str | None:
    """Returns what the name has before the longest of the domains; None if it is below none."""
    name = server_name.rstrip(".").lower()
    below = [domain for domain in domains if name.endswith(f".{domain}")]
    return name.removesuffix(f".{max(below, key=len)}") if below else None


def _is_within(server_name: str, domains: Sequence[str]) -> bool:
    name = f".{server_name.rstrip('.').lower()}"
    return any(name.endswith(f".{domain}") for domain in domains)


def for_the_pooler(destination: Destination) -> Destination:
    """Returns the destination, with its parameters converted if it leads to a pooler.

    Raises ReplicationThroughPooler and OptionThroughPooler, because the pooler's server connections
    are for transactions, and UnreadableParameter.
    """
    # PgBouncer passes parameters on by SQL statements. If Postgres refuses those, PgBouncer ends
    # the connection later, with a meaningless error or none.
    if not destination.pooled:
        return destination
    parameters = dict(destination.parameters)
    if parameters.pop(b"replication", b"no").lower() not in _NO:
        raise ReplicationThroughPooler
    options = parameters.pop(b"options", b"")
    _check_readable(b"options", options)
    settings = _settings_in(options)
    for setting in settings:
        if setting.lower() not in _ACCEPTED_BY_POOLER:
            raise OptionThroughPooler(setting.decode())
    # As in Postgres, a parameter of its own wins over the same one in `options`.
    given = {name.lower() for name in parameters}
    parameters |= {name: value for name, value in settings.items() if name.lower() not in given}
    if (name := parameters.get(b"application_name")) is not None:
        parameters[b"application_name"] = _NOT_PRINTABLE.sub(_written_out, name)
    for key, value in parameters.items():
        _check_readable(key, value)
    return replace(destination, parameters=parameters)


def _needs_session(parameters: dict[bytes, bytes]) -> bool:
    """True if the client asks for replication, or for a setting that PgBouncer does not apply."""
    is_replication = parameters.get(b"replication", b"no").lower() not in _NO
    names = {*parameters, *_settings_in(parameters.get(b"options", b""))}
    own = {name.lower() for name in names} - {b"options", b"replication"}
    return is_replication or not own <= _ACCEPTED_BY_POOLER


def _settings_in(options: bytes) -> dict[bytes, bytes]:
    """Returns the settings in `-c name=value` and `--name=value`. Any other option is returned as a
    name too, without a value, so that the caller finds that no pooler accepts it."""
    settings = {}
    words = iter([_ESCAPED.sub(rb"\1", word) for word in _OPTION.findall(options)])
    for word in words:
        setting = next(words, b"") if word == b"-c" else word[2:]
        name, is_setting, value = setting.partition(b"=")
        if word[:2] in (b"-c", b"--") and is_setting:
            settings[name.replace(b"-", b"_")] = value
        else:
            settings[word] = b""
    return settings


def _written_out(byte: re.Match[bytes]) -> bytes:
    r"""Returns the byte as Postgres writes it: `\xff`."""
    return rb"\x%02x" % ord(byte[0])


def _check_readable(name: bytes, value: bytes) -> None:
    try:
        name.decode()
        value.decode()
    except UnicodeDecodeError:
        raise UnreadableParameter(name.decode(errors="backslashreplace")) from None
