"""Hooks that schemathesis loads by SCHEMATHESIS_HOOKS. They limit the number of created resources,
because each project is a cluster on the disk."""

from collections import Counter
from typing import Any

import schemathesis

MOST = {"createProject": 4, "createProjectBranch": 10}
_made: Counter[str] = Counter()


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    return _made[_id_of(case)] < MOST.get(_id_of(case), 1_000_000)


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    if response.status_code == 201:
        _made[_id_of(case)] += 1


def _id_of(case: Any) -> str:
    return str(case.operation.definition.raw["operationId"])
