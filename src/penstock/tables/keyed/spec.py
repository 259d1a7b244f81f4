"""The section `table.keyed` of a job file: keys, sequence, deletes and sizes; and the part that a table stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import msgspec
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.conditions import check_condition
from penstock.flow.columns.fitting import folded
from penstock.job.conditions import condition_fields
from penstock.job.expressions import Field, KafkaField, to_text
from penstock.job.faults import KeyPath, nearest, shown
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec
from penstock.job.values import Duration, Flag, Key, Part, Positive
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.vectors import VECTORS_PROPERTY
from penstock.tables.keyed.layout import BUCKET, RESERVED, Layout, is_key_type
from penstock.tables.rows import OutputColumns, complete_rows

LAYOUT_PROPERTY = "penstock.keyed"
"""The table property with the keys that a table was created with, so that it can be read without its job."""
AT: KeyPath = ("table", "keyed")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSpec(TablePlace):
    kind = "keyed"
    layout: Annotated[Layout, Part.INLINE]
    chunk_rows: Positive = 500_000
    deletion_vectors: Flag = True
    """Whether few replaced rows of a file are marked; otherwise their file is rewritten. A property of new tables."""
    tombstone_retention_seconds: Annotated[Duration, Key("tombstone_retention")] = 7 * 86_400.0
    filter_tombstones: bool = False
    """Whether records without a value are dropped: deletes are records of their own."""
    partition_by: tuple[str, ...] = (BUCKET,)

    @property
    def tombstones_place(self) -> TablePlace:
        """The table of deleted keys."""
        return TablePlace(f"{self.path}_tombstones", self.storage_options, partition_by=(BUCKET,))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.layout.keys)

    @property
    def summary(self) -> str:
        return f"{self.kind}, {self.layout}"

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        job, output = complete_rows(job, reader)
        layout = self.layout
        _check_keys(layout, output, reader)
        if layout.sequence is not None:
            _check_column(layout.sequence, output, (*AT, "sequence"), reader)
        for at, fault, hint in type_faults(layout, output.types, complete=output.complete):
            reader.note((*AT, *at), fault, hint)
        stated = job.on.tombstone if reader.states("on", "tombstone") else None
        if stated not in (None, "filter"):
            hint = "remove it: a record without a value deletes the row of its key; or filter: it is left out"
            reader.note(("on", "tombstone"), "has no meaning for a keyed table", hint)
        if reader.findings:
            return job
        vectors = {VECTORS_PROPERTY: "true"} if self.deletion_vectors else {}
        properties = {LAYOUT_PROPERTY: encode_layout(layout), **vectors}
        return replace(job, table=replace(self, properties=properties, filter_tombstones=stated is not None))


class _Kept(msgspec.Struct, frozen=True):
    """The settings that decide in which bucket a row is and which row wins."""

    version: Literal[4]
    partition_keys: tuple[str, ...]
    row_keys: tuple[str, ...]
    sequence: str | None
    buckets: int


def encode_layout(layout: Layout) -> str:
    """The text of the property: equal for layouts whose rows are in the same buckets."""
    kept = _Kept(4, layout.partition_keys, layout.row_keys, layout.sequence, layout.buckets)
    return msgspec.json.encode(kept).decode()


def decode_layout(text: str) -> Layout:
    """The keys that a table was created with; deletes and nulls are settings of the job."""
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"the table property {LAYOUT_PROPERTY} cannot be read",
            detail=f"{error}: {text}",
            hint="was the table created by another version of Penstock?",
        ) from error
    return Layout(kept.row_keys, kept.partition_keys, kept.sequence, buckets=kept.buckets)


def _check_keys(layout: Layout, output: OutputColumns, reader: SpecReader) -> None:
    if reader.states(*AT, "row_keys") and not layout.row_keys:
        reader.note((*AT, "row_keys"), "names no column")
    names: set[str] = set()
    for at, name in _key_columns(layout):
        if name.casefold() in names:
            reader.note((*AT, *at), f"{shown(name)} is named twice")
        else:
            _check_column(name, output, (*AT, *at), reader)
        names.add(name.casefold())
    for name in output.types:
        if folded(name) in RESERVED:
            reader.note(AT, f"the job has a column {name}, which keyed tables keep for themselves", "rename it")


def _check_column(name: str, output: OutputColumns, at: KeyPath, reader: SpecReader) -> None:
    if not output.has(name):
        computed = "keys are columns: compute it under `columns`" if "(" in name else ""
        reader.note(at, f"the table has no column {shown(name)}", computed or nearest(name, output.types))


def _key_columns(layout: Layout) -> list[tuple[KeyPath, str]]:
    """The columns of the key, each with its key in the section."""
    named = {"partition_keys": layout.partition_keys, "row_keys": layout.row_keys or ()}
    return [((key, number), name) for key, names in named.items() for number, name in enumerate(names)]


def delete_columns(layout: Layout) -> list[str]:
    """The columns that the condition of deletes reads."""
    read = () if layout.delete is None else condition_fields(layout.delete)
    return [field.path[0] for field in read if isinstance(field, Field)]


def type_faults(
    layout: Layout, types: Mapping[str, pa.DataType | None], *, complete: bool = True
) -> Iterator[tuple[KeyPath, str, str]]:
    """Faults of the types of columns, as far as they are known, each with its key in the section and a hint."""
    columns = _key_columns(layout)
    if layout.sequence is not None:
        columns.append((("sequence",), layout.sequence))
    for at, name in columns:
        kind = types.get(name)
        if kind is not None and not is_key_type(kind):
            use = "a sequence" if at == ("sequence",) else "part of a key"
            what = "its type is not one of whole numbers, text, bytes, booleans, dates and times"
            yield at, f"{shown(name)} cannot be {use}: {what}", ""
    if layout.delete is None or not (complete or {*delete_columns(layout)} <= types.keys()):
        return
    for field in condition_fields(layout.delete):
        if isinstance(field, KafkaField):
            yield ("delete",), f"{to_text(field)} is not a column", f"compute it: columns: {{name: {to_text(field)}}}"
    try:
        check_condition(layout.delete, pa.schema([(name, kind or pa.null()) for name, kind in types.items()]))
    except UserError as error:
        yield ("delete",), error.primary, error.hint
