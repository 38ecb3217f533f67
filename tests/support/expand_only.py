"""What a migration would take from the previous release, whose processes use the same database
during a rolling upgrade (CONTRIBUTING.md, "Migrations")."""

import re
from collections.abc import Iterator

from django.db import models
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import (
    AddConstraint,
    AddField,
    AlterField,
    AlterModelTable,
    AlterUniqueTogether,
    CreateModel,
    DeleteModel,
    RemoveConstraint,
    RemoveField,
    RenameField,
    RenameModel,
    RunPython,
    RunSQL,
    SeparateDatabaseAndState,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState

from controlplane.database.version import RUNS_BESIDE

# What SQL may not do to a table. Each has the table as its first group, and a column as its second
# if it concerns one.
TAKES = [
    re.compile(rf"ALTER TABLE (?:IF EXISTS )?(?:ONLY )?(\w+)[^;]*?\b{clause}", re.IGNORECASE)
    for clause in (
        r"DROP (?:COLUMN )?(?:IF EXISTS )?(?!CONSTRAINT|DEFAULT|NOT\b)(\w+)",
        r"RENAME (?:COLUMN )?(\w+) TO",
        r"ALTER (?:COLUMN )?(\w+) (?:SET DATA )?TYPE",
        r"ALTER (?:COLUMN )?(\w+) SET NOT NULL",
        r"ADD CONSTRAINT ()",
        r"RENAME ()TO",
    )
] + [re.compile(r"DROP TABLE (?:IF EXISTS )?(\w+)()", re.IGNORECASE)]
APP = "controlplane"


def end_of_previous_release() -> tuple[str, str]:
    """The migration with which the previous release ended, or the one that replaces it."""
    found = MigrationLoader(None).disk_migrations.items()
    return next(key for key, one in found if (APP, RUNS_BESIDE) in (key, *one.replaces))


def taken(
    migration: Migration, before: ProjectState, previous: ProjectState
) -> Iterator[tuple[str, str]]:
    """Yield what the migration takes from the release with the models `previous`, as the name of
    the thing and the reason. `before` are the models before the migration, and is changed to those
    after it."""
    made: set[str] = set()
    checks: dict[tuple[str, str], models.CheckConstraint] = {}
    for operation in migration.operations:
        in_database: list[Operation] = [operation]
        if isinstance(operation, SeparateDatabaseAndState):
            in_database = list(operation.database_operations)
            for one in operation.state_operations:
                yield from _forgotten(one, before)
        for one in in_database:
            if isinstance(one, CreateModel):
                made.add(one.name.lower())
            elif getattr(one, "model_name", "") not in made:
                yield from _of_operation(one, before, previous, checks)
        operation.state_forwards(APP, before)


def _of_operation(
    one: Operation,
    before: ProjectState,
    previous: ProjectState,
    checks: dict[tuple[str, str], models.CheckConstraint],
) -> Iterator[tuple[str, str]]:
    match one:
        case AddField(model_name=model, name=name, field=field):
            if not (field.null or field.many_to_many or field.has_db_default()):
                yield f"{model}.{name}", "is required, and has no db_default"
        case (
            RemoveField(model_name=model, name=name) | RenameField(model_name=model, old_name=name)
        ):
            if _has(previous, model, name):
                yield f"{model}.{name}", "is removed or renamed"
        case AlterField(model_name=model, name=name, field=field):
            yield from _narrowed(before.models[APP, model].fields[name], field, f"{model}.{name}")
        case DeleteModel(name=name) | RenameModel(old_name=name):
            if (APP, name.lower()) in previous.models:
                yield name, "is removed or renamed"
        case AlterModelTable(name=name) | AlterUniqueTogether(name=name):
            yield name, "gets another table or a stricter rule"
        case RemoveConstraint(model_name=model, name=name):
            found = _constraint(before.models[APP, model], name)
            if isinstance(found, models.CheckConstraint):
                checks[model, name] = found
        case AddConstraint(model_name=model, constraint=constraint):
            if not _is_wider(checks.get((model, constraint.name)), constraint):
                yield f"{model}.{constraint.name}", "is a stricter rule"
        case RunSQL(sql=sql):
            assert isinstance(sql, str)
            yield from _of_sql(sql, previous)
        case RunPython():
            yield "RunPython", "is not understood here: use SQL"


def _forgotten(one: Operation, before: ProjectState) -> Iterator[tuple[str, str]]:
    """A column that the models forget and the table keeps: this release does not fill it."""
    if isinstance(one, RemoveField):
        field = before.models[APP, one.model_name.lower()].fields[one.name]
        if not (field.null or field.has_db_default()):
            yield f"{one.model_name}.{one.name}", "is kept, required, and has no db_default"


def _narrowed(
    old: "models.Field[object, object]", new: "models.Field[object, object]", what: str
) -> Iterator[tuple[str, str]]:
    if old.null and not new.null:
        yield what, "becomes required"
    if old.has_db_default() and not new.has_db_default():
        yield what, "loses its db_default"
    is_longer = (old.max_length or 0) <= (new.max_length or 0)
    if old.get_internal_type() != new.get_internal_type() or not is_longer:
        yield what, "gets another type"


def _constraint(model: ModelState, name: str) -> models.BaseConstraint | None:
    return next((one for one in model.options.get("constraints", ()) if one.name == name), None)


def _is_wider(old: models.CheckConstraint | None, new: models.BaseConstraint) -> bool:
    """Whether it replaces a list of allowed values by one that has them all."""
    if old is None or not isinstance(new, models.CheckConstraint):
        return False
    (were, values), (are, allowed) = _only_part(old), _only_part(new)
    return were == are and were.endswith("__in") and set(values) <= set(allowed)


def _only_part(constraint: models.CheckConstraint) -> tuple[str, list[str]]:
    """What the constraint says, as ("action__in", [...]); ("", []) if it is of another form."""
    match constraint.condition:
        case models.Q(children=[(str(lookup), list(values))]):
            return lookup, values
    return "", []


def _of_sql(sql: str, previous: ProjectState) -> Iterator[tuple[str, str]]:
    for pattern in TAKES:
        for table, column in pattern.findall(sql):
            for (app, name), model in previous.models.items():
                named = model.options.get("db_table") or f"{app}_{name}"
                if named == table and (not column or _has_column(model, column)):
                    yield f"{table}.{column}".rstrip("."), "is taken by SQL"


def _has_column(model: ModelState, column: str) -> bool:
    return any(
        column in (name, field.db_column, f"{name}_id") for name, field in model.fields.items()
    )


def _has(state: ProjectState, model: str, field: str) -> bool:
    found = state.models.get((APP, model.lower()))
    return found is not None and field in found.fields
