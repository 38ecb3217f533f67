"""Reads an endpoint's own operations, however many others its project has."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.api_operations import Operation
from console.management_api import ManagementAPI

A_PAGE = 200
# A server that ignores the filter lists all of the project's operations. So many pages of them are
# searched at once; the user may continue from there.
MOST_PAGES = 5
ENOUGH = 20


@dataclass(frozen=True)
class OwnOperations:
    # The newest first.
    items: Sequence[Operation]
    # Requests the next, older ones; "" if there are none.
    cursor: str
    # How many of the project's operations were searched; 0 if the server knows the filter.
    looked_through: int


def own_operations(
    api: ManagementAPI, project_id: str, endpoint_id: str, *, cursor: str = ""
) -> OwnOperations:
    """Return the endpoint's newest operations, from `cursor` on.

    This takes one call if the server knows the filter.
    """
    found: list[Operation] = []
    looked_through = 0
    for _ in range(MOST_PAGES):
        page = api.operations(project_id, limit=A_PAGE, cursor=cursor, endpoint_id=endpoint_id)
        own = [operation for operation in page.items if operation.endpoint_id == endpoint_id]
        found += own
        cursor = page.cursor
        if len(own) == len(page.items) and not looked_through:
            return OwnOperations(found, cursor, 0)
        looked_through += len(page.items)
        if not cursor or len(found) >= ENOUGH:
            break
    return OwnOperations(found, cursor, looked_through)
