"""Rows as the API reads them, thousands of times a second.

Django writes the text of a query anew each time, which takes longer than Postgres needs for the
answer, and makes each row by way of its constructor. A `Reading` writes its text once, from the
model's fields, so that a new field is part of it; the server prepares it once for each connection;
and a row is made as Django makes one of deferred fields: its attributes are set, and no more.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.base import ModelState
from django.utils.functional import cached_property

from controlplane.database.base import DatabaseWrapper

Row = TypeVar("Row", bound=models.Model)


class Reading(Generic[Row]):
    """A query of whole rows of a model.

    `rest` is what follows its FROM, in which the table is called `t`, with values as psycopg names
    them: `%(project)s`. `joined` are its foreign keys whose rows come along, and are called as the
    field; `extra` are further attributes, by the SQL of each; `without` are fields that Django
    reads once they are asked for.
    """

    def __init__(
        self,
        model: type[Row],
        rest: str,
        *,
        joined: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._model, self._rest, self._without = model, rest, without
        self._joined, self._extra = joined, extra or {}

    def rows(self, given: Mapping[str, models.Model] | None = None, **values: Any) -> list[Row]:
        """`given` are foreign keys' rows that the caller has already. Raises django.db.Error."""
        table, relations, extra = self._shape
        found = cast(DatabaseWrapper, connection).read(self._sql, values)
        if not relations and not extra:
            return [table.made(columns, given) for columns in found]
        rows = []
        for columns in found:
            row = table.made(columns, given)
            place = len(table.names)
            for field, related in relations:
                field.set_cached_value(row, related.made(columns[place:]))
                place += len(related.names)
            row.__dict__.update(zip(extra, columns[place:], strict=True))
            rows.append(row)
        return rows

    def first(self, given: Mapping[str, models.Model] | None = None, **values: Any) -> Row | None:
        """As `rows`."""
        rows = self.rows(given, **values)
        return rows[0] if rows else None

    # Both at the first use, as the models are not whole before.
    @cached_property
    def _shape(self) -> "tuple[Table[Row], list[Relation], list[str]]":
        keys = [self._model._meta.get_field(name) for name in self._joined]
        relations: list[Relation] = []
        for key in keys:
            assert isinstance(key, models.ForeignKey)
            assert not key.null, "a row without the other would be left out"
            relations.append((key, Table(key.related_model)))
        return Table(self._model, self._without), relations, list(self._extra)

    @cached_property
    def _sql(self) -> str:
        table, relations, _ = self._shape
        columns, tables = table.columns("t"), [f"{table.name} t"]
        for key, related in relations:
            columns += related.columns(key.name)
            tables.append(f"JOIN {related.name} {key.name} ON {key.name}.id = t.{key.column}")
        columns += [f"({sql}) AS {name}" for name, sql in self._extra.items()]
        return " ".join(["SELECT", ", ".join(columns), "FROM", *tables, self._rest])


class Table(Generic[Row]):
    """How rows of a model are made of what was selected."""

    def __init__(self, model: type[Row], without: Collection[str] = ()) -> None:
        self._model = model
        self.name = model._meta.db_table
        fields = [one for one in model._meta.concrete_fields if one.name not in without]
        self._column_names = [one.column for one in fields]
        self.names = [one.attname for one in fields]
        # JSON is read by the driver already.
        self._converters = [
            (one.attname, one.from_db_value)
            for one in fields
            if hasattr(one, "from_db_value") and not isinstance(one, models.JSONField)
        ]

    def columns(self, alias: str) -> list[str]:
        return [f'{alias}."{name}"' for name in self._column_names]

    def made(self, columns: Sequence[Any], given: Mapping[str, models.Model] | None = None) -> Row:
        """The row of the first of the columns; `given` are rows that it refers to."""
        row = self._model.__new__(self._model)
        row.__dict__.update(zip(self.names, columns, strict=False))
        for name, convert in self._converters:
            row.__dict__[name] = convert(row.__dict__[name], None, connection)
        row._state = state = ModelState()
        state.adding, state.db = False, DEFAULT_DB_ALIAS
        if given is not None:
            state.fields_cache = {**given}
        return row


# A foreign key, and what it leads to.
Relation = tuple["models.ForeignKey[Any, Any]", Table[Any]]
