"""Reads rows of Parquet files, a batch at a time, and of the row groups only those that can matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.lake.storage import Storage

BATCH_ROWS_MAX = 131_072
_MILLI = 1000
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows of some buckets whose windows start in `[start, end)`."""

    buckets: range
    start_ms: int
    end_ms: int

    def rows(self) -> pl.Expr:
        bucket = pl.col("bucket").is_between(self.buckets.start, self.buckets.stop - 1)
        return bucket & starts_in(self.start_ms, self.end_ms)

    def can_be_in(self, group: pq.RowGroupMetaData, numbers: dict[str, int]) -> bool:
        """Whether the statistics of a row group leave it possible."""
        bounds = {"bucket": (self.buckets.start, self.buckets.stop - 1), "window_start": self._micros}
        return all(_meets(group, numbers.get(name), *each) for name, each in bounds.items())

    @property
    def _micros(self) -> tuple[int, int]:
        return self.start_ms * _MILLI, self.end_ms * _MILLI - 1


def starts_in(start_ms: int, end_ms: int) -> pl.Expr:
    """Of rows: whether their windows start in `[start, end)`."""
    return pl.col("window_start").to_physical().is_between(start_ms * _MILLI, end_ms * _MILLI - 1)


def scan(storage: Storage, path: str, schema: pa.Schema, wanted: Wanted | None = None) -> Iterator[pl.DataFrame]:
    """The rows of a file in these columns; those that the file lacks are null. Raises `NotFoundError` if it is gone."""
    for batch in read_batches(storage, path, schema, wanted):
        frame = as_frame(pa.Table.from_batches([batch]))
        yield frame if wanted is None else frame.filter(wanted.rows())


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
    storage: Storage, path: str, schema: pa.Schema, wanted: Wanted | None = None
) -> Iterator[pa.RecordBatch]:
    """The same as Arrow has them: all rows of the row groups that can have wanted ones."""
    with storage.open_reader(path) as file:
        try:
            # Without a pre-buffer only the column chunks of one row group are in memory.
            parquet = pq.ParquetFile(file, pre_buffer=False)
            columns = [each for each in schema.names if each in parquet.schema_arrow.names]
            groups = _groups(parquet, wanted)
            for batch in parquet.iter_batches(BATCH_ROWS_MAX, row_groups=groups, columns=columns, use_threads=False):
                yield fit_columns(batch, schema)
        except pa.ArrowException as error:
            raise InvariantError(f"cannot read {path} of {storage.url}", detail=str(error)) from error


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    return as_frame(schema.empty_table())


def as_frame(rows: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)
    return found


def _groups(parquet: pq.ParquetFile, wanted: Wanted | None) -> Sequence[int]:
    every = range(parquet.num_row_groups)
    if wanted is None:
        return list(every)
    names = {parquet.metadata.schema.column(number).path: number for number in range(parquet.metadata.num_columns)}
    return [each for each in every if wanted.can_be_in(parquet.metadata.row_group(each), names)]


def _meets(group: pq.RowGroupMetaData, number: int | None, least: int, most: int) -> bool:
    found = None if number is None else group.column(number).statistics
    if found is None or not found.has_min_max:
        return True
    return bool(found.min_raw <= most and found.max_raw >= least)
