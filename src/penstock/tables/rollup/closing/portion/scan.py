"""Reads rows of Parquet files, a batch at a time, and of the row groups only those that can matter."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.lake.storage import Storage

BATCH_ROWS_MAX = 131_072
WHOLE_BYTES_MAX = 4 * 1024 * 1024
"""Of files that are read at once."""
_MILLI = 1000
"""Microseconds."""


class GroupFilter(Protocol):
    """Says which row groups of a file are read."""

    def can_be_in(self, group: pq.RowGroupMetaData, numbers: dict[str, int]) -> bool:
        """Whether the statistics of a row group leave it possible that it has rows that are asked for.

        `numbers` are those of its columns, by name.
        """


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows of some buckets whose windows start in `[start, end)`."""

    buckets: range
    start_ms: int
    end_ms: int

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows among others; where all are wanted, the same frame."""
        first, last = self.buckets.start, self.buckets.stop - 1
        if not _all_between(rows["bucket"], first, last):
            rows = rows.filter(pl.col("bucket").is_between(first, last))
        return starting_in(rows, self.start_ms, self.end_ms)

    def can_be_in(self, group: pq.RowGroupMetaData, numbers: dict[str, int]) -> bool:
        """Whether the statistics of a row group leave it possible."""
        bounds = {"bucket": (self.buckets.start, self.buckets.stop - 1), "window_start": self._micros}
        return all(group_meets(group, numbers.get(name), *each) for name, each in bounds.items())

    @property
    def _micros(self) -> tuple[int, int]:
        return self.start_ms * _MILLI, self.end_ms * _MILLI - 1


def starts_in(start_ms: int, end_ms: int) -> pl.Expr:
    """Of rows: whether their windows start in `[start, end)`."""
    return pl.col("window_start").to_physical().is_between(start_ms * _MILLI, end_ms * _MILLI - 1)


def starting_in(rows: pl.DataFrame, start_ms: int, end_ms: int) -> pl.DataFrame:
    """The rows whose windows start in `[start, end)`; where all do, the same frame: to copy it takes much longer."""
    if _all_between(rows["window_start"].to_physical(), start_ms * _MILLI, end_ms * _MILLI - 1):
        return rows
    return rows.filter(starts_in(start_ms, end_ms))


def _all_between(numbers: pl.Series, first: int, last: int) -> bool:
    least, most = numbers.min(), numbers.max()
    return isinstance(least, int) and isinstance(most, int) and first <= least and most <= last


def scan(storage: Storage, path: str, schema: pa.Schema, wanted: Wanted | None = None) -> Iterator[pl.DataFrame]:
    """The rows of a file in these columns; those that the file lacks are null. Raises `NotFoundError` if it is gone."""
    for batch in read_batches(storage, path, schema, wanted):
        frame = as_frame(pa.Table.from_batches([batch]))
        yield frame if wanted is None else wanted.of(frame)


def in_larger_parts(several: Iterable[pl.DataFrame], rows_min: int) -> Iterator[pl.DataFrame]:
    """The same rows in frames of so many, but for the last."""
    held: list[pl.DataFrame] = []
    for rows in several:
        held.append(rows)
        if sum(each.height for each in held) >= rows_min:
            yield pl.concat(held)
            held.clear()
    if held:
        yield pl.concat(held)


def read_batches(
    storage: Storage, path: str, schema: pa.Schema, wanted: GroupFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """The same as Arrow has them: all rows of the row groups that can have wanted ones."""
    with _opened(storage, path) as file:
        try:
            # Without a pre-buffer only the column chunks of one row group are in memory.
            parquet = pq.ParquetFile(file, pre_buffer=False)
            columns = [each for each in schema.names if each in parquet.schema_arrow.names]
            groups = _groups(parquet, wanted)
            for batch in parquet.iter_batches(BATCH_ROWS_MAX, row_groups=groups, columns=columns, use_threads=False):
                yield fit_columns(batch, schema)
        except pa.ArrowException as error:
            raise InvariantError(f"cannot read {path} of {storage.url}", detail=str(error)) from error


def _opened(storage: Storage, path: str) -> IO[bytes]:
    """A small file as a whole: each read of a column chunk is a request of its own."""
    if storage.size_bytes(path) <= WHOLE_BYTES_MAX:
        return io.BytesIO(storage.read(path))
    return storage.open_reader(path)


def with_partition_columns(
    rows: pa.RecordBatch, partition_by: Sequence[str], values: Sequence[pa.Scalar], schema: pa.Schema
) -> pa.RecordBatch:
    """The rows of a file in the columns of its table, of which the log of the table tells some, and not the file."""
    constant = dict(zip(partition_by, values, strict=True))
    columns = [
        pa.repeat(constant[each.name], rows.num_rows).cast(each.type)
        if each.name in constant
        else rows.column(each.name)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    return as_frame(schema.empty_table())


def as_frame(rows: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)
    return found


def _groups(parquet: pq.ParquetFile, wanted: GroupFilter | None) -> Sequence[int]:
    every = range(parquet.num_row_groups)
    if wanted is None:
        return list(every)
    names = {parquet.metadata.schema.column(number).path: number for number in range(parquet.metadata.num_columns)}
    return [each for each in every if wanted.can_be_in(parquet.metadata.row_group(each), names)]


def group_meets(group: pq.RowGroupMetaData, number: int | None, least: int, most: int) -> bool:
    found = None if number is None else group.column(number).statistics
    if found is None or not found.has_min_max:
        return True
    return bool(found.min_raw <= most and found.max_raw >= least)
