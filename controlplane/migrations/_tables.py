"""Short forms for what migrations make."""

from django.db import migrations, models
from django.db.migrations import AddField, CreateModel

from controlplane import clock
from controlplane.models.rules import DELETED, LIVING, index, one_of, unique

__all__ = ["DELETED", "LIVING", "index", "one_of", "unique"]

KEY = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")
NOW = models.DateTimeField(default=clock.now)
TIME = models.DateTimeField(null=True)
NO = models.BooleanField(db_default=False, default=False)
LIST = models.JSONField(db_default=models.Value([], models.JSONField()), default=list)
OBJECT = models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)


class Squashed(migrations.Migration):
    """A migration that replaces others. Django notes all of their names in the transaction of the
    migration, unless statements are left for its end. So these are executed before: a migration
    that was killed is noted whole or not at all."""

    def apply(self, project_state, schema_editor, collect_sql=False):
        state = super().apply(project_state, schema_editor, collect_sql)
        for statement in schema_editor.deferred_sql:
            schema_editor.execute(statement)
        schema_editor.deferred_sql.clear()
        return state


def replaced(*names: str) -> list[tuple[str, str]]:
    return [("controlplane", name) for name in names]


def table(name: str, /, *, rules: list = (), **fields: models.Field) -> CreateModel:
    """A new table with these columns. The rules are its indexes and constraints."""
    indexes = [one for one in rules if isinstance(one, models.Index)]
    constraints = [one for one in rules if isinstance(one, models.BaseConstraint)]
    return CreateModel(name, [*fields.items()], {"indexes": indexes, "constraints": constraints})


def columns(table: str, /, **fields: models.Field) -> list[AddField]:
    return [AddField(table, name, field) for name, field in fields.items()]


def link(
    table: str,
    on_delete=models.CASCADE,
    related_name: str = "+",
    kind: type[models.ForeignKey] = models.ForeignKey,
    **options: object,
) -> models.ForeignKey:
    """A reference to a row of another table."""
    return kind(f"controlplane.{table}", on_delete, related_name=related_name, **options)
