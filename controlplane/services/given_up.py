"""An operation that failed or was cancelled, as whoever tries it again finds it."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.models import GIVEN_UP, Action, Branch, Endpoint, Operation
from controlplane.operations.effects import pending_state
from controlplane.services.branches import refuse_while_deleting
from controlplane.services.errors import Conflict


@dataclass(frozen=True)
class GivenUp:
    """The operation, and what is around it. The caller holds the project's lock."""

    operation: Operation
    # It and the others that are tried again with it, oldest first.
    together: Sequence[Operation]
    # The project's unfinished operations.
    earlier: Sequence[Operation]

    @property
    def branch(self) -> Branch:
        """Raises Conflict where it was deleted."""
        branch = self.operation.branch
        assert branch is not None
        if branch.deleted_at is not None:
            raise Conflict(f"the branch {branch.id} was deleted")
        return branch

    @property
    def endpoint(self) -> Endpoint:
        """As its row is now. Raises Conflict where it was deleted, Locked where its branch is about
        to be."""
        endpoint = (
            Endpoint.objects.select_related("branch", "project__account", "project__region")
            .filter(id=self.operation.endpoint_id, deleted_at=None)
            .first()
        )
        if endpoint is None:
            raise Conflict(f"the endpoint {self.operation.endpoint_id} was deleted")
        refuse_while_deleting(endpoint.branch, self.earlier)
        return endpoint

    @property
    def heading_for(self) -> str:
        """The state that the endpoint is in, or under way to."""
        endpoint = self.endpoint
        return pending_state(endpoint, self.earlier) or endpoint.current_state

    def has(self, action: Action) -> bool:
        return any(row.action == action for row in self.together)

    def refuse_if_superseded(self, *actions: Action, having: str = "") -> None:
        """Raises Conflict where a newer operation of the endpoint has one of these actions, with
        such a detail, and did not fail."""
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
