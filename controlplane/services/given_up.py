"""A failed or cancelled operation that is to be retried, with the rows that this depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.models import GIVEN_UP, Action, Branch, Endpoint, Operation
from controlplane.operations.engine.effects import pending_state
from controlplane.services.branches import refuse_while_deleting
from controlplane.services.errors import Conflict


@dataclass(frozen=True)
class GivenUp:
    """A failed or cancelled operation. The caller holds the project's lock."""

    operation: Operation
    # All operations that are retried together, including this one, oldest first.
    together: Sequence[Operation]
    # The project's unfinished operations.
    earlier: Sequence[Operation]

    @property
    def branch(self) -> Branch:
        """The operation's branch. Raises Conflict if it was deleted."""
        branch = self.operation.branch
        assert branch is not None
        if branch.deleted_at is not None:
            raise Conflict(f"the branch {branch.id} was deleted")
        return branch

    @property
    def endpoint(self) -> Endpoint:
        """The operation's endpoint, as its row is now. Raises Conflict if it was deleted, Locked if
        its branch is being deleted."""
        endpoint = (
            Endpoint.objects.select_related("branch", "project__account", "project__host")
            .filter(id=self.operation.endpoint_id, deleted_at=None)
            .first()
        )
        if endpoint is None:
            raise Conflict(f"the endpoint {self.operation.endpoint_id} was deleted")
        refuse_while_deleting(endpoint.branch, self.earlier)
        return endpoint

    @property
    def heading_for(self) -> str:
        """The pending state of the endpoint, or its present state if nothing is pending."""
        endpoint = self.endpoint
        return pending_state(endpoint, self.earlier) or endpoint.current_state

    def has(self, action: Action) -> bool:
        return any(row.action == action for row in self.together)

    def refuse_if_superseded(self, *actions: Action, having: str = "") -> None:
        """Raises Conflict if a newer operation of the endpoint, of another chain, has one of these
        actions and neither failed nor was cancelled. If `having` is given, only operations with
        that key in their details count."""
        newer = Operation.objects.filter(
            endpoint_id=self.operation.endpoint_id,
            action__in=actions,
            created_at__gt=self.operation.created_at,
        ).exclude(chain=self.operation.chain)
        if having:
            newer = newer.filter(details__has_key=having)
        found = newer.exclude(status__in=GIVEN_UP).order_by("-created_at").first()
        if found:
            verb = "has finished" if found.is_finished else "is under way"
            raise Conflict(f"the newer operation {found.id} ({found.action}) {verb}")
