"""Rows as the API reads them, thousands of times a second.

Django writes the text of a query anew each time, which takes longer than Postgres needs for the
answer, and makes each row by way of its constructor. A `Reading` writes its text once, from the
model's fields, so that a new field is part of it; the server prepares it once for each connection;
and a row is made as Django makes one of deferred fields: its attributes are set, and no more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connection, models
from django.db.models.base import ModelState
from django.utils.functional import cached_property

from controlplane.database.base import DatabaseWrapper

Row = TypeVar("Row", bound=models.Model)
Given = Mapping[str, models.Model] | None


class Reading(Generic[Row]):
    """A query of whole rows of a model.

    `rest` is what follows its FROM, in which the table is called `t`, with values as psycopg names
    them: `%(project)s`. `joined` are its foreign keys whose rows come along, and theirs after them
    ("project", "project__region"), or the one row whose key leads to it ("branch__meter"); in the
    SQL they have these names. `extra` are further attributes, by the SQL of each; `without` are
    fields that Django reads once they are asked for.
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

    def rows(self, given: Given = None, **values: Any) -> list[Row]:
        """`given` are rows, by their foreign keys, that the caller has already.

        Raises django.db.Error.
        """
        found = cast(DatabaseWrapper, connection).read(self._sql, values)
        if not self._relations and not self._extra:
            return [self._table.made(columns, given) for columns in found]
        return [self._with_others(columns, given) for columns in found]

    def first(self, given: Given = None, **values: Any) -> Row | None:
        """As `rows`."""
        rows = self.rows(given, **values)
        return rows[0] if rows else None

    def _with_others(self, columns: Sequence[Any], given: Given) -> Row:
        row = self._table.made(columns, given)
        made: dict[str, models.Model | None] = {"": row}
        place = len(self._table.names)
        for one in self._relations:
            has_one = columns[place + one.table.key_place] is not None
            made[one.name] = one.table.made(columns[place:]) if has_one else None
            if holder := made[one.holder]:
                one.key.set_cached_value(holder, made[one.name])
            place += len(one.table.names)
        row.__dict__.update(zip(self._extra, columns[place:], strict=True))
        return row

    # These at the first use, as the models are not whole before.
    @cached_property
    def _table(self) -> "Table[Row]":
        return Table(self._model, self._without)

    @cached_property
    def _relations(self) -> "list[Relation]":
        found: dict[str, Relation] = {}
        for name in self._joined:
            holder, _, field = name.rpartition("__")
            model = found[holder].key.related_model if holder else self._model
            key = model._meta.get_field(field)
            assert isinstance(key, models.ForeignKey | models.OneToOneRel)
            is_optional = key.null or bool(holder and found[holder].is_optional)
            found[name] = Relation(name, holder, key, Table(key.related_model), is_optional)
        return list(found.values())

    @cached_property
    def _sql(self) -> str:
        columns, tables = self._table.columns("t"), [f"{self._table.name} t"]
        for one in self._relations:
            columns += one.table.columns(one.name)
            tables.append(one.join)
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
        self.key_place = next(place for place, one in enumerate(fields) if one.primary_key)
        # JSON is read by the driver already.
        self._converters = [
            (one.attname, one.from_db_value)
            for one in fields
            if hasattr(one, "from_db_value") and not isinstance(one, models.JSONField)
        ]

    def columns(self, alias: str) -> list[str]:
        return [f'{alias}."{name}"' for name in self._column_names]

    def made(self, columns: Sequence[Any], given: Given = None) -> Row:
        """The row of the first of the columns; `given` are rows that it refers to."""
        attributes: dict[str, Any] = dict(zip(self.names, columns, strict=False))
        for name, convert in self._converters:
            attributes[name] = convert(attributes[name], None, connection)
        attributes["_state"] = state = ReadState()
        row = self._model.__new__(self._model)
        row.__dict__ = attributes
        if given is not None:
            state.fields_cache = {**given}
        return row


class ReadState(ModelState):
    """Of a row that was read."""

    adding = False
    db = DEFAULT_DB_ALIAS


@dataclass(frozen=True)
class Relation:
    """A foreign key of `holder`'s ("" for the rows themselves), or that of the one row which leads
    to the holder, and the table that it brings along."""

    name: str
    holder: str
    key: "models.ForeignKey[Any, Any] | models.OneToOneRel"
    table: Table[Any]
    # Whether a holder may have none.
    is_optional: bool

    @property
    def join(self) -> str:
        ours, theirs = self.key.get_joining_fields()[0]
        kind = "LEFT JOIN" if self.is_optional else "JOIN"
        return (
            f"{kind} {self.table.name} {self.name}"
            f" ON {self.name}.{theirs.column} = {self.holder or 't'}.{ours.column}"
        )
