"""The errors that the proxy reports to clients, with their messages and SQLSTATEs. The messages are
the ones that Neon's clients know (specification, section 10), so programs that parse those
understand Perch's too."""

import re

from controlplane.proxy.wire import messages

_CAPITAL = re.compile("(?<!^)(?=[A-Z])")


class ConnectionLost(Exception):
    """The peer closed the connection, or it broke."""


class ProxyError(Exception):
    """A refusal that the client reads as a FATAL error before its connection ends. `words` is the
    text of a class that has always the same."""

    sqlstate = "XX000"
    hint: str | None = None
    words = ""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(self.words if text is None else text)

    @property
    def reason(self) -> str:
        """The name of the error's class as the figures have it, such as `password_failed`."""
        return _CAPITAL.sub("_", type(self).__name__).lower()

    def packet(self) -> bytes:
        return messages.error_response(
            severity="FATAL", sqlstate=self.sqlstate, text=str(self), hint=self.hint
        )


class ErrorAbout(ProxyError):
    """`words` have a place for what the error is about."""

    def __init__(self, about: str) -> None:
        super().__init__(self.words.format(about))


class ProtocolViolation(ProxyError):
    sqlstate = "08P01"


class ForwardingRefused(ProtocolViolation):
    """A PROXY protocol header came from an address that the operator has not named."""

    hint = "The proxy's operator lists the load balancers in PERCH_PROXY_PROTOCOL_FROM."
    words = "PROXY protocol headers are not accepted from this address"


class UnsupportedProtocol(ProxyError):
    sqlstate = "0A000"

    def __init__(self, major: int, minor: int) -> None:
        super().__init__(
            f"unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2"
        )
        self.major = major

    def packet(self) -> bytes:
        return super().packet() if self.major >= 3 else messages.error_response_v2(str(self))


class InsecureConnection(ProxyError):
    sqlstate = "28000"
    words = "connection is insecure (try using `sslmode=require`)"


class MissingEndpoint(ProxyError):
    sqlstate = "28000"
    hint = (
        "Connect to <endpoint-id>.<region host> with TLS, or add options=endpoint%3D<endpoint-id> "
        "to the connection string."
    )
    words = (
        "Endpoint ID is not specified. Either please upgrade the postgres client library "
        "(libpq) for SNI support or pass the endpoint ID (first part of the domain name) as a "
        "parameter: '?options=endpoint%3D<endpoint-id>'."
    )


class InconsistentEndpoint(ProxyError):
    sqlstate = "28000"

    def __init__(self, *, sni: str, option: str) -> None:
        super().__init__(
            f"Inconsistent project name inferred from SNI ('{sni}') "
            f"and project option ('{option}')."
        )


class MalformedEndpoint(ErrorAbout):
    sqlstate = "28000"
    words = "Project name ('{}') must contain only alphanumeric characters and hyphen."


class ForeignServerName(ErrorAbout):
    sqlstate = "28000"
    words = "Common name inferred from SNI ('{}') is not known"


class HistoryNotKept(ErrorAbout):
    """The client asked for a branch as it was at a moment in the past."""

    sqlstate = "0A000"
    hint = (
        "Create a branch of that moment, or query it by time travel, and connect to its endpoint."
    )
    words = "connecting to a past point in time ({}) is not offered by this server"


class PasswordFailed(ErrorAbout):
    """The same answer to a wrong password, an unknown role and an unknown endpoint."""

    sqlstate = "28P01"
    hint = (
        "Check the password, the role and the spelling of the endpoint's id. The endpoint may have "
        "been deleted, or be in another region."
    )
    words = 'password authentication failed for user "{}"'


class AddressNotAllowed(ErrorAbout):
    """The client's address is in none of the ranges of `allowed_ips`."""

    sqlstate = "28000"
    words = (
        "This IP address {} is not allowed to connect to this endpoint. "
        "Please add it to the allowed list in the console. "
        "Make sure to check for IPv4 or IPv6 addresses."
    )


class PublicAddressRefused(ProxyError):
    """The project has `block_public_connections`, and the client comes from the Internet."""

    sqlstate = "28000"
    words = "This connection is trying to access this endpoint from a blocked network."


class LoginUnknown(Exception):
    """The compute did not answer whether a role may log in, or its catalog and the rows are not
    synchronized yet."""


class LoginEnded(ErrorAbout):
    """The role, login right or password that a session was started with is no longer valid."""

    sqlstate = "57P01"
    words = "terminating connection due to administrator command: {}"


class DisabledEndpointRefused(ProxyError):
    sqlstate = "55000"
    words = "Control plane request failed: endpoint is disabled"


class UnreadableParameter(ErrorAbout):
    sqlstate = "22021"
    words = 'invalid byte sequence for encoding "UTF8" in the parameter "{}"'


class ReplicationThroughPooler(ProxyError):
    sqlstate = "0A000"
    hint = "Connect to the endpoint's own host, without -pooler."
    words = "replication connections are not supported through the pooler"


class OptionThroughPooler(ErrorAbout):
    """The words are PgBouncer's, whose newer versions read `options` themselves."""

    sqlstate = "08P01"
    hint = "Connect to the endpoint's own host, without -pooler."
    words = "unsupported startup parameter in options: {}"


class QuotaUsedUp(ProxyError):
    """The project has used up a quota in its settings; the message says which."""

    sqlstate = "53400"
    hint = (
        "Raise the quota in the project's settings, or wait for the end of the consumption period."
    )


class EndpointElsewhere(ErrorAbout):
    """The endpoint's compute is on another host of the region. Only clients that have proved their
    identity learn of this."""

    sqlstate = "08004"
    words = "the endpoint is on another host of its region: connect to {}"


class HostUnreachable(ErrorAbout):
    """The proxy of the endpoint's host cannot be reached. The endpoint has done nothing for the
    client."""

    sqlstate = "57P03"
    words = 'the endpoint\'s host "{}" cannot be reached; try again'


class WakeFailed(ProxyError):
    """The compute did not start; `reason` tells the user why."""

    sqlstate = "57P03"

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(f"Control plane request failed: {reason or self.words}")


class HostUnavailable(WakeFailed):
    """The worker of the endpoint's host gives no sign of life."""


class ControlPlaneUnavailable(WakeFailed):
    """The control plane's database did not answer in time."""

    words = "the control plane does not answer; try again"


class ProjectMoved(WakeFailed):
    """The client has waited here for a compute that is on another host now. It reaches that host
    when it connects again, by any proxy."""

    words = "the project has moved to another host; connect again"


class WakeTimeout(WakeFailed):
    """`waits_for` says which operation the start waits for; "" if it waits for none."""

    def __init__(self, seconds: float, waits_for: str = "") -> None:
        words = f"the compute did not start within {seconds:g} seconds"
        super().__init__(f"{words}: {waits_for}; try again" if waits_for else words)


class ComputeUnreachable(ProxyError):
    sqlstate = "57P03"
    hint = (
        "The endpoint runs, but does not answer. Connect again; if that does not help, restart the "
        "endpoint, and look into its logs."
    )
    words = "Couldn't connect to compute node"


class ComputeRefused(ProxyError):
    """The compute itself refused the client. The client gets the compute's own packet."""

    def __init__(self, packet: bytes) -> None:
        super().__init__("the compute refused the connection")
        self._packet = packet

    def packet(self) -> bytes:
        return self._packet


class TooManyConnections(ProxyError):
    sqlstate = "53300"

    def __init__(self, whose: str, limit: int) -> None:
        super().__init__(
            f"sorry, too many clients already: {whose} may have at most {limit} connections"
        )


# Why a connection ends if nothing else is known. These are not the words of LetGo, which say that
# nothing was begun.
ENDED = "the endpoint's compute has ended; connect again"


class AdministratorShutdown(ProxyError):
    """The endpoint was deleted, disabled or reassigned, its compute stops, or the proxy does."""

    sqlstate = "57P01"

    def __init__(self, because: str = ENDED) -> None:
        super().__init__(f"terminating connection due to administrator command: {because}")


class LetGo(AdministratorShutdown):
    """For another host's proxy, whose client this host has served: nothing of the client is left in
    a compute here, and nothing was begun of what it has sent since. That proxy connects the client
    again, to whichever host has the project then."""

    def __init__(self) -> None:
        super().__init__("the compute has stopped")


def is_let_go(packet: bytes) -> bool:
    """True if this ErrorResponse is LetGo's."""
    return packet == LetGo().packet()
