"""What an optional feature adds to the core, which reads the list of features and names none:
`controlplane.installed` does. Each feature has a module that makes its `Feature`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from controlplane.models import Action, Endpoint, Host, JobTask

if TYPE_CHECKING:
    from controlplane.operations.actions.table import ActionRule

# Seconds between two rounds at rest: of those about computes and operations, for what only somebody
# at the machine can have done meanwhile; of those that read the directories of all branches, or
# tidy the region's rows, which any host may do; and of those that need not be in time.
REST_INTERVAL, LONG_REST_INTERVAL, SHORT_REST_INTERVAL = 60.0, 300.0, 30.0


class CannotServe(Exception):
    """The worker cannot start as it is set up; the message says why."""


class PutBack(Exception):
    """A job cannot be done by this process. It goes back into the queue."""


@dataclass(frozen=True)
class Round:
    """A periodic task. It is done every `interval` seconds, and every `at_rest` seconds while the
    host is at rest (`operations.rounds.at_rest`); None if that makes no difference."""

    interval: float
    do: Callable[[Host], None]
    at_rest: float | None = None


@dataclass(frozen=True)
class Problem:
    """Something that an operator must know. `name` is for programs. `detail` is a text for people,
    which contains nothing that belongs to an account."""

    name: str
    detail: str


@dataclass(frozen=True)
class Feature:
    """What one feature adds. All functions may be called by several threads at once. Those that
    get an endpoint are called under its branch's lock, and raise nothing that the operation can
    survive."""

    # The rows of its actions in the table of actions. Their names are in `models.Action`.
    actions: Mapping[Action, "ActionRule"] = field(default_factory=dict)
    rounds: Sequence[Round] = ()
    # What its jobs do, by task. The functions get the job's subject, may be called again after a
    # crash or an exception, and raise what they cannot handle.
    jobs: Mapping[JobTask, Callable[[str], None]] = field(default_factory=dict)
    # Called when the worker starts, before any job. Returns more rounds. Raises CannotServe.
    begin: Callable[[Host], Sequence[Round]] = lambda host: ()
    # Called when the worker is told to end: what its jobs wait for is to end too.
    end: Callable[[], None] = lambda: None
    # Called with the endpoint of a compute that was just started, before its catalog changes.
    on_start: Callable[[Endpoint], None] = lambda endpoint: None
    # Called with that of a compute that was started or reconfigured, while clients still wait.
    before_clients: Callable[[Endpoint], None] = lambda endpoint: None
    # Functions that need the worker's rights, by the names under which a proxy on this host calls
    # them (`proxy.directory.host_calls`).
    host_calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    # What to do about each of its exceptions whose message is meaningful to the user of an endpoint
    # (`operations.actions.words`). The first class that matches is used.
    advice: Mapping[type[Exception], str] = field(default_factory=dict)
    # Bytes of the disk that it holds for other hosts, and how many of them it removes by itself
    # while the disk is short, so that nothing else need be removed for them.
    received_bytes: Callable[[], int] = lambda: 0
    removable_bytes: Callable[[], int] = lambda: 0
    # Problems that the worker publishes, and columns of the host's row that it publishes with them.
    checks: Sequence[Callable[[], list[Problem]]] = ()
    published: Callable[[], Mapping[str, Any]] = dict


@cache
def features() -> Sequence[Feature]:
    """All features. They are imported at the first call, because they import the core."""
    from controlplane.installed import FEATURES

    return FEATURES
