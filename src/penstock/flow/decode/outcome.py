"""Records on their way through a decoder, and the gathering of what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.seen_types import NewFields
from penstock.flow.decode.payload import unwrap
from penstock.flow.rows import Decoded, DecodedRows, RowNumbers, bad_rows, rows_without, take
from penstock.job.spec import Payload, TombstonePolicy, Wrapping

TOMBSTONE = "value is null (a tombstone)"


@dataclass(frozen=True, slots=True)
class Records:
    """Unwrapped values of the rows `rows` of a batch, ascending; `errors`, `filtered` and `rest` are the others."""

    values: pa.Array
    rows: Sequence[int]
    errors: Mapping[int, str]
    filtered: int
    rest: pa.RecordBatch | None
    """The last rows of the batch, which have still to be opened, because the others hold enough bytes unpacked."""


def open_records(batch: pa.RecordBatch, wrapping: Wrapping, tombstone: TombstonePolicy) -> Records:
    """Apply the tombstone policy and take the payloads out of their wrapping; kept tombstones are null values."""
    values = batch.column("value")
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    dead: list[int] = []
    if values.null_count and tombstone is not TombstonePolicy.ROW:
        dead = pc.indices_nonzero(values.is_null()).to_pylist()
    errors: dict[int, str] = {}
    rest = None
    if wrapping.payload is not Payload.PLAIN:
        opened, errors = unwrap(values.to_pylist(), wrapping)
        values, count = pa.array(opened, pa.binary()), len(opened)
        if count < batch.num_rows:
            rest = batch.slice(count)
            dead = [row for row in dead if row < count]
    filtered = len(dead) if tombstone is TombstonePolicy.FILTER else 0
    rows = rows_without(len(values), {**errors, **dict.fromkeys(dead, TOMBSTONE)})
    if len(rows) < len(values):
        values = values.take(pa.array(rows, pa.int64()))
    if not filtered:
        errors |= dict.fromkeys(dead, TOMBSTONE)
    return Records(values, rows, errors, filtered, rest)


def gathered(
    batch: pa.RecordBatch,
    columns: pa.RecordBatch,
    rows: RowNumbers,
    errors: Mapping[int, str],
    opened: Records,
    new_fields: NewFields,
) -> Decoded:
    """The outcome of a batch: `columns` were decoded from its rows `rows`, `errors` names the bad ones."""
    rows_of_it = DecodedRows(columns, take(batch, rows))
    return Decoded(rows_of_it, bad_rows(batch, errors), opened.filtered, new_fields, opened.rest)
