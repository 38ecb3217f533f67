"""Migrations leave the previous release what it needs: its processes run on the same database
during a rolling upgrade."""

import pytest
from django.db import migrations, models
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from tests.support.expand_only import APP, end_of_previous_release, taken


def loader() -> MigrationLoader:
    return MigrationLoader(None)


def previous_models() -> ProjectState:
    return loader().project_state(end_of_previous_release())


def since_the_previous_release() -> list[Migration]:
    graph = loader().graph
    (newest,) = graph.leaf_nodes(APP)
    names = [key for key in graph.forwards_plan(newest) if key[0] == APP]
    return [graph.nodes[key] for key in names[names.index(end_of_previous_release()) + 1 :]]


def test_this_releases_migrations_take_nothing_from_the_previous_release() -> None:
    state, found = previous_models(), []
    made = since_the_previous_release()
    for migration in made:
        found += [
            f"{migration.name}: {what} {why}"
            for what, why in taken(migration, state, previous_models())
        ]
    assert made
    assert found == []


def complaints(*operations: Operation) -> list[str]:
    """What is said against a migration with these operations after the previous release."""
    made = type("Migration", (Migration,), {"operations": list(operations)})
    migration = made("0099_tried", APP)
    return [f"{what} {why}" for what, why in taken(migration, previous_models(), previous_models())]


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (migrations.RemoveField("branch", "name"), "branch.name is removed or renamed"),
        (migrations.RenameField("branch", "name", "title"), "branch.name is removed or renamed"),
        (migrations.DeleteModel("Snapshot"), "Snapshot is removed or renamed"),
        (migrations.RenameModel("Snapshot", "Picture"), "Snapshot is removed or renamed"),
        (
            migrations.AddField("branch", "depth", models.IntegerField(default=0)),
            "branch.depth is required, and has no db_default",
        ),
        (
            migrations.AlterField("branch", "name", models.CharField(max_length=1)),
            "branch.name gets another type",
        ),
        (
            migrations.AlterField("host", "state_id", models.CharField(max_length=36)),
            "host.state_id becomes required",
        ),
        (
            migrations.AddConstraint(
                "host", models.CheckConstraint(name="new", condition=models.Q(port__gt=9))
            ),
            "host.new is a stricter rule",
        ),
        (
            migrations.RunSQL("ALTER TABLE controlplane_host ALTER port TYPE bigint"),
            "controlplane_host.port is taken by SQL",
        ),
        (
            migrations.RunSQL("ALTER TABLE controlplane_host DROP COLUMN port"),
            "controlplane_host.port is taken by SQL",
        ),
        (
            migrations.RunSQL("ALTER TABLE controlplane_host DROP region_id"),
            "controlplane_host.region_id is taken by SQL",
        ),
        (
            migrations.RunSQL("ALTER TABLE controlplane_host ALTER state_id SET NOT NULL"),
            "controlplane_host.state_id is taken by SQL",
        ),
        (
            migrations.RunSQL("DROP TABLE controlplane_snapshot"),
            "controlplane_snapshot is taken by SQL",
        ),
        (
            migrations.SeparateDatabaseAndState(
                state_operations=[migrations.RemoveField("host", "address")]
            ),
            "host.address is kept, required, and has no db_default",
        ),
        (migrations.RunPython(migrations.RunPython.noop), "RunPython is not understood"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_contracts_is_refused(operation: Operation, words: str) -> None:
    assert any(words in one for one in complaints(operation)), complaints(operation)


@pytest.mark.parametrize(
    "operations",
    [
        [migrations.AddField("branch", "depth", models.IntegerField(db_default=0))],
        [migrations.AddField("branch", "depth", models.IntegerField(null=True))],
        # The first half of a removal, and the second: the previous release's models had no such
        # field any more.
        [
            migrations.SeparateDatabaseAndState(
                state_operations=[migrations.RemoveField("host", "state_place")]
            )
        ],
        [migrations.RunSQL("ALTER TABLE controlplane_region DROP COLUMN worker_seen_at")],
        [migrations.RunSQL("ALTER TABLE controlplane_host ALTER port DROP NOT NULL")],
        # What is new in this release may change until it is released.
        [
            migrations.AddField("branch", "depth", models.IntegerField(null=True)),
            migrations.RemoveField("branch", "depth"),
        ],
    ],
)
def test_what_expands_is_accepted(operations: list[Operation]) -> None:
    assert complaints(*operations) == []


def test_a_list_of_allowed_values_may_grow_only() -> None:
    def replaced(*values: str) -> list[str]:
        state = previous_models()
        model = state.models[APP, "operation"]
        (old,) = (
            one for one in model.options["constraints"] if one.name == "operation_action_is_known"
        )
        ((_, known),) = old.condition.children
        allowed = models.Q(action__in=[*known[len(values) == 0 :], *values])
        return complaints(
            migrations.RemoveConstraint("operation", "operation_action_is_known"),
            migrations.AddConstraint(
                "operation",
                models.CheckConstraint(name="operation_action_is_known", condition=allowed),
            ),
        )

    assert replaced("dance") == []
    assert replaced() == ["operation.operation_action_is_known is a stricter rule"]
