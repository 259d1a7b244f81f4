"""What the values of JSON fields show: how often they are present, their types, examples and ranges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from penstock.flow.columns.seen_types import NewFields, add_fields, column_types
from penstock.flow.columns.times import day_number, timestamp_micros
from penstock.flow.decode.json.new_fields import in_record
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.job.expressions import Call, Expression, Field, FunctionName

Path: TypeAlias = tuple[str, ...]
ITEM = "[]"
"""Stands for the elements of a list in a path."""
FIELDS_MAX = 2_000
DEPTH_MAX = 16
DISTINCT_MAX = 1_000
EXAMPLES_MAX = 3
EXAMPLE_CHARACTERS_MAX = 40
MAP_MEMBERS_MIN, MAP_SHARE_MAX = 50, 0.5
"""An object with more members, each of them rare, is a map."""
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_DIGITS_USUAL, _DIGITS_MAX = 18, 38
_ENCODE = msgspec.json.Encoder().encode
YEAR_2000_MICROS, YEAR_2100_MICROS = 946_684_800_000_000, 4_102_444_800_000_000
EPOCHS: dict[FunctionName, int] = {
    "timestamp_seconds": 1_000_000,
    "timestamp_millis": 1_000,
    "timestamp_micros": 1,
}
"""The functions that make a time of a number, with the microseconds of its unit."""
_KINDS = {bool: "boolean", int: "number", float: "number", str: "text", dict: "object", list: "list"}


@dataclass(slots=True)
class FieldProfile:
    """The values of one path."""

    path: Path
    present: int = 0
    """Records that have a value there other than null."""
    kinds: Counter[str] = field(default_factory=Counter)
    distinct: set[Any] = field(default_factory=set)
    """Of texts and numbers, up to a bound."""
    examples: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The least and the greatest number, and the earliest and the latest time in texts."""
    text_types: Counter[str] = field(default_factory=Counter)
    """How many texts can be read as a time, a date or a number."""
    digits: int = 0
    scale: int = 0
    """Most digits before and behind the point."""
    whole: bool = True
    _record: int = -1

    @property
    def name(self) -> str:
        return ".".join(self.path).replace(f".{ITEM}", ITEM)

    @property
    def range(self) -> tuple[Any, Any]:
        """That of the most frequent kind."""
        return self.ranges.get(self.kinds.most_common(1)[0][0] if self.kinds else "", (None, None))

    @property
    def text_type(self) -> pa.DataType:
        """The type of a column for the texts, if all of them can be read as something else."""
        count = self.kinds["text"]
        if count and self.text_types["date"] == count:
            return pa.date32()
        if count and self.text_types["time"] == count:
            return pa.timestamp("us", "UTC")
        digits = self.digits + self.scale
        if count and self.text_types["number"] == count and self.scale and digits <= _DIGITS_MAX:
            return pa.decimal128(_DIGITS_USUAL if digits < _DIGITS_USUAL else _DIGITS_MAX, self.scale)
        return pa.string()

    @property
    def time(self) -> Expression | None:
        """The expression for the time in this field; None if its values are no times."""
        if {*self.kinds} == {"text"} and pa.types.is_temporal(self.text_type):
            return Field(self.path)
        if {*self.kinds} == {"number"} and self.whole and ITEM not in self.path:
            least, most = self.range
            for function, micros in EPOCHS.items():
                if least * micros >= YEAR_2000_MICROS and most * micros < YEAR_2100_MICROS:
                    return Call(function, (Field(self.path),))
        return None

    def add(self, value: Any, record: int) -> None:
        if value is None:
            return
        self.present += record != self._record
        self._record = record
        kind = _KINDS[type(value)]
        self.kinds[kind] += 1
        if kind == "text":
            self._add_text(value)
        elif kind == "number":
            self.whole = self.whole and isinstance(value, int)
            self._widen(kind, value)
        if kind not in ("object", "list"):
            if value not in self.distinct and len(self.examples) < EXAMPLES_MAX:
                text = str(value) if kind == "text" else _ENCODE(value).decode()
                self.examples.append(clipped(text, EXAMPLE_CHARACTERS_MAX))
            if len(self.distinct) < DISTINCT_MAX:
                self.distinct.add(value)

    def _add_text(self, value: str) -> None:
        if number := _DECIMAL.fullmatch(value):
            self.text_types["number"] += 1
            self.digits = max(self.digits, len(number[1]))
            self.scale = max(self.scale, len(number[2] or ""))
            return
        for name, read in (("date", day_number), ("time", timestamp_micros)):
            try:
                read(value)
            except ValueError:
                continue
            # A date is also a time.
            self.text_types[name] += 1
            if name == "time":
                self._widen("text", value)

    def _widen(self, kind: str, value: Any) -> None:
        least, most = self.ranges.get(kind, (value, value))
        self.ranges[kind] = min(least, value), max(most, value)


def field_profiles(objects: Iterable[Any]) -> dict[Path, FieldProfile]:
    """The fields of JSON objects, in the order in which they first appear."""
    fields: dict[Path, FieldProfile] = {}

    def walk(value: Any, path: Path, record: int) -> None:
        if path:
            if len(path) > DEPTH_MAX or (path not in fields and len(fields) >= FIELDS_MAX):
                return
            fields.setdefault(path, FieldProfile(path)).add(value, record)
        if isinstance(value, dict):
            for name, member in value.items():
                walk(member, (*path, name), record)
        elif isinstance(value, list):
            for item in value:
                walk(item, (*path, ITEM), record)

    for record, value in enumerate(objects):
        walk(value, (), record)
    return fields


def inferred_schema(objects: Iterable[Any], fields: Mapping[Path, FieldProfile]) -> pa.Schema:
    """The columns that exports would infer; texts are times and decimals where all of them are."""
    seen: NewFields = {}
    for value in objects:
        try:
            add_fields(seen, in_record(_ENCODE(value), {}))
        except (MisfitError, msgspec.MsgspecError):
            continue
    return pa.schema([(name, _refined(kind, (name,), fields)) for name, kind in column_types(seen).items()])


def _refined(kind: pa.DataType, path: Path, fields: Mapping[Path, FieldProfile]) -> pa.DataType:
    profile = fields.get(path)
    if pa.types.is_string(kind):
        return profile.text_type if profile else kind
    if pa.types.is_list(kind):
        return pa.list_(_refined(kind.value_type, (*path, ITEM), fields))
    if pa.types.is_struct(kind):
        members = [(child.name, _refined(child.type, (*path, child.name), fields)) for child in kind]
        types = {item for _, item in members}
        if profile and len(path) == 1 and len(members) > MAP_MEMBERS_MIN and len(types) == 1:
            shares = [fields[*path, name].present / profile.present for name, _ in members if (*path, name) in fields]
            if max(shares) < MAP_SHARE_MAX:
                return pa.map_(pa.string(), types.pop())
        return pa.struct(members)
    return kind


def value_at(value: Any, path: Sequence[str]) -> Any:
    """The value of a path; None if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
