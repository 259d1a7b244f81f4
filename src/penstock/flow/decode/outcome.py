"""Records on their way through a decoder, and the gathering of what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.payload import unwrap
from penstock.flow.rows import Decoded, DecodedRows, bad_rows, take
from penstock.flow.seen_types import NewFields
from penstock.job.spec import Payload, TombstonePolicy

TOMBSTONE = "value is null (a tombstone)"


@dataclass(frozen=True, slots=True)
class Records:
    """Unwrapped values of the rows `rows` of a batch, ascending; `errors` and `filtered` are the others."""

    values: pa.Array
    rows: Sequence[int]
    errors: Mapping[int, str]
    filtered: int


def open_records(batch: pa.RecordBatch, payload: Payload, tombstone: TombstonePolicy) -> Records:
    """Apply the tombstone policy and take the payloads out of their wrapping; kept tombstones are null values."""
    values = batch.column("value")
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    rows: Sequence[int] = range(batch.num_rows)
    errors: dict[int, str] = {}
    filtered = 0
    if values.null_count and tombstone is not TombstonePolicy.ROW:
        dead = pc.indices_nonzero(values.is_null()).to_pylist()
        rows = pc.indices_nonzero(values.is_valid()).to_pylist()
        values = values.drop_null()
        if tombstone is TombstonePolicy.FILTER:
            filtered = len(dead)
        else:
            errors = dict.fromkeys(dead, TOMBSTONE)
    if payload is not Payload.PLAIN:
        values, rows = _unwrapped(values, rows, payload, errors)
    return Records(values, rows, errors, filtered)


def _unwrapped(
    values: pa.Array, rows: Sequence[int], payload: Payload, errors: dict[int, str]
) -> tuple[pa.Array, Sequence[int]]:
    inner, unreadable = unwrap(values.to_pylist(), payload)
    errors.update({rows[number]: error for number, error in unreadable.items()})
    if unreadable:
        good = [number for number in range(len(inner)) if number not in unreadable]
        inner, rows = [inner[number] for number in good], [rows[number] for number in good]
    return pa.array(inner, pa.binary()), rows


def gathered(
    batch: pa.RecordBatch,
    columns: pa.RecordBatch,
    rows: Sequence[int],
    errors: Mapping[int, str],
    filtered: int,
    new_fields: NewFields,
) -> Decoded:
    """The outcome of a batch: `columns` were decoded from its rows `rows`, `errors` names the bad ones."""
    return Decoded(DecodedRows(columns, take(batch, rows)), bad_rows(batch, errors), filtered, new_fields)
