"""The steps that all decoders share: unwrap the records, and gather good and bad rows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.seen_types import NewFields
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.rows import Decoded, DecodedRows, bad_rows, take
from penstock.job.spec import Payload, TombstonePolicy

TOMBSTONE = "value is null (a tombstone)"
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""Of one record, decompressed."""
PART_BYTES_MAX = 64 * 1024 * 1024
"""Unpacked values that are held at a time; the last one may exceed it."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Records:
    """Unwrapped values of the rows `rows` of a batch, ascending; `errors`, `filtered` and `rest` are the others."""

    values: pa.Array
    rows: npt.NDArray[np.int64]
    errors: Mapping[int, str]
    filtered: int
    rest: pa.RecordBatch | None
    """The last rows of the batch, which have still to be opened, because the others hold enough bytes unpacked."""


def open_records(batch: pa.RecordBatch, payload: Payload, tombstone: TombstonePolicy) -> Records:
    """Apply the tombstone policy and decompress the payloads; kept tombstones are null values."""
    values = batch.column("value")
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    dead: list[int] = []
    if values.null_count and tombstone != "row":
        dead = pc.indices_nonzero(values.is_null()).to_pylist()
    errors: dict[int, str] = {}
    rest = None
    if payload != "plain":
        opened, errors = unwrap(values.to_pylist())
        values, count = pa.array(opened, pa.binary()), len(opened)
        if count < batch.num_rows:
            rest = batch.slice(count)
            dead = [row for row in dead if row < count]
    filtered = len(dead) if tombstone == "filter" else 0
    rows = np.delete(np.arange(len(values)), [*errors, *dead])
    if len(rows) < len(values):
        values = values.take(pa.array(rows))
    if not filtered:
        errors |= dict.fromkeys(dead, TOMBSTONE)
    return Records(values, rows, errors, filtered, rest)


def gathered(
    batch: pa.RecordBatch,
    columns: pa.RecordBatch,
    rows: npt.NDArray[np.int64],
    errors: Mapping[int, str],
    opened: Records,
    new_fields: NewFields,
) -> Decoded:
    """The outcome of a batch: `columns` were decoded from its rows `rows`, `errors` names the bad ones."""
    rows_of_it = DecodedRows(columns, take(batch, rows))
    return Decoded(rows_of_it, bad_rows(batch, errors), opened.filtered, new_fields, opened.rest)


def unwrap(values: Sequence[bytes | None]) -> tuple[list[bytes | None], dict[int, str]]:
    """The inner bytes of values until enough are held, and by number why some have none to read.

    The others are for the next call; null stays null.
    """
    unwrapped: list[bytes | None] = []
    errors: dict[int, str] = {}
    size_bytes = 0
    for number, value in enumerate(values):
        if size_bytes >= PART_BYTES_MAX:
            break
        inner = None
        try:
            if value is not None:
                inner = _gunzip(value)
        except MisfitError as error:
            errors[number] = str(error)
        unwrapped.append(inner)
        size_bytes += len(inner or b"")
    return unwrapped, errors


def _gunzip(data: bytes) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data or not parts:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(member.decompress(data, PAYLOAD_BYTES_MAX + 1 - size_bytes))
        except zlib.error as error:
            raise MisfitError(f"payload is not gzip: {error}") from None
        size_bytes += len(parts[-1])
        if size_bytes > PAYLOAD_BYTES_MAX:
            raise MisfitError(f"payload unpacks to more than {PAYLOAD_BYTES_MAX} bytes")
        if not member.eof:
            raise MisfitError("payload is not gzip: it ends too early")
        data = member.unused_data
    return b"".join(parts)
