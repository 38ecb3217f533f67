"""The commits that removed tables, on the page “Go back to a moment”."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from console.api.errors import APIError, Unauthorized
from console.api.management_api import ManagementAPI
from console.api.resources.history import History, PastMoment, Removal
from console.pages.problems import words_beside

# The smallest difference between two moments.
ONE_MICROSECOND = timedelta(microseconds=1)
MAX_SHOWN = 10


@dataclass(frozen=True)
class Undo:
    """A commit that removed tables, and the moment just before it."""

    removal: Removal
    before: str


def undos(history: History) -> Sequence[Undo]:
    newest = list(reversed(history.removals))[:MAX_SHOWN]
    return [Undo(one, PastMoment(one.at - ONE_MICROSECOND).text) for one in newest]


def newest_history(
    api: ManagementAPI, project_id: str, branch_id: str
) -> tuple[History, dict[str, Any]]:
    """Return the history with its newest commits, which the server may not have read yet, and the
    context that says so to `_undos.html`."""
    history = api.history.of_branch(project_id, branch_id)
    if history.latest is None:
        return history, {"has_looked": True}
    try:
        # To answer this, the server reads the log up to the present.
        api.history.resolve(project_id, branch_id, PastMoment(history.latest))
    except Unauthorized:
        raise
    except APIError as error:
        return history, {"has_looked": True, "not_looked": words_beside(error)}
    return api.history.of_branch(project_id, branch_id), {"has_looked": True}
