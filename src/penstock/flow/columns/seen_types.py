"""What the values of new fields show, counted, the types that columns for them get, and which become columns.

The records of a whole batch decide, not one unusual record. Types that fit each other are widened together: whole
numbers and fractions to double, objects and lists member by member. Of those that do not fit each other the one that
most records show wins, and the other records will not fit the column. Null, `[]` and `{}` show no type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.job.schema import name_fault

_COUNTS = ("texts", "objects", "lists", "wholes", "fractions", "flags")


class SeenTypes(msgspec.Struct, omit_defaults=True):
    """How many values of a field are of which kind."""

    texts: int = 0
    objects: int = 0
    lists: int = 0
    wholes: int = 0
    fractions: int = 0
    flags: int = 0
    items: SeenTypes | None = None
    """What the elements of the lists show."""
    members: dict[str, SeenTypes] = msgspec.field(default_factory=dict)
    """What the members of the objects show."""

    @property
    def count(self) -> int:
        return self.texts + self.objects + self.lists + self.wholes + self.fractions + self.flags

    @property
    def shows_values(self) -> bool:
        """Whether there is more than empty objects and lists."""
        plain = self.texts or self.wholes or self.fractions or self.flags
        inside = any(member.shows_values for member in self.members.values())
        return bool(plain) or inside or (self.items is not None and self.items.shows_values)

    def add(self, other: SeenTypes) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.items is not None:
            self.items = self.items or SeenTypes()
            self.items.add(other.items)
        add_fields(self.members, other.members)

    def type(self) -> pa.DataType | None:
        """The type of a column for the values; None if they show none."""
        members = column_types(self.members)
        item = None if self.items is None else self.items.type()
        number = pa.float64() if self.fractions else pa.int64()
        # With equal counts the first wins.
        candidates: list[tuple[int, pa.DataType | None]] = [
            (self.texts, pa.string()),
            (self.objects, pa.struct(list(members.items())) if members else None),
            (self.lists, None if item is None else pa.list_(item)),
            (self.wholes + self.fractions, number),
            (self.flags, pa.bool_()),
        ]
        shown = [(count, kind) for count, kind in candidates if count and kind is not None]
        return max(shown, key=lambda candidate: candidate[0])[1] if shown else None


NewFields = dict[str, SeenTypes]
"""What is known of new fields, by name. A known struct with new members is here too, with only those."""


def add_fields(into: NewFields, other: Mapping[str, SeenTypes]) -> None:
    for name, counts in other.items():
        into.setdefault(name, SeenTypes()).add(counts)


def merged(reports: Iterable[Mapping[str, SeenTypes]]) -> NewFields:
    """All fields of the reports, in the order in which they first appear."""
    fields: NewFields = {}
    for report in reports:
        add_fields(fields, report)
    return fields


def column_types(fields: Mapping[str, SeenTypes]) -> dict[str, pa.DataType]:
    """The fields that can be columns, with their types; of spellings that differ only in case the most frequent one."""
    chosen: dict[str, str] = {}
    types: dict[str, pa.DataType] = {}
    for name, counts in fields.items():
        kind = None if name_fault(name) else counts.type()
        if kind is None:
            continue
        rival = chosen.get(folded(name))
        if rival is not None:
            if (fields[rival].count, rival) >= (counts.count, name):
                continue
            del types[rival]
        chosen[folded(name)] = name
        types[name] = kind
    return types


def addable(fields: Mapping[str, pa.DataType], taken: Iterable[str], decoded: Iterable[str] = ()) -> pa.Schema:
    """The fields that a table with the columns `taken` can add; a field that is decoded already brings new members.

    Delta compares names without case. A name that a computed column has taken cannot be a column of the records.
    """
    decoded_names, names = frozenset(decoded), {folded(name) for name in taken}
    return pa.schema(
        [pa.field(name, fields[name]) for name in sorted(fields) if name in decoded_names or folded(name) not in names]
    )


def left_out(fields: Mapping[str, SeenTypes], columns: Iterable[pa.Field]) -> list[str]:
    """Fields with values that find no place in the columns, as dotted paths."""
    chosen = {field.name: field.type for field in columns}
    result: list[str] = []
    for name, counts in fields.items():
        if name not in chosen:
            result += [name] if counts.shows_values else []
            continue
        kind, inner = chosen[name], counts
        while inner.items is not None and pa.types.is_list(kind):
            kind, inner = kind.value_type, inner.items
        if pa.types.is_struct(kind):
            result += [f"{name}.{below}" for below in left_out(inner.members, kind)]
    return sorted(result)


def rare_paths(
    fields: Mapping[str, SeenTypes], count_min: float, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The fields that show values in fewer records, at any depth; a rare object with all that is in it."""
    for name, counts in fields.items():
        if counts.shows_values and not name_fault(name):
            if counts.count < count_min:
                yield (*path, name)
            inner = counts
            while inner.items is not None:
                inner = inner.items
            yield from rare_paths(inner.members, count_min, (*path, name))


def to_json(fields: Mapping[str, SeenTypes]) -> str:
    """In ASCII, because names may hold half of a surrogate pair; without zeros, and empty if there are no fields."""
    return json.dumps(msgspec.to_builtins(fields)) if fields else ""


def from_json(text: str) -> NewFields:
    return msgspec.convert(json.loads(text), NewFields) if text else {}
