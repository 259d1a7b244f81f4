"""Reads the files of both tables a batch at a time, and only row groups whose statistics match."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import IO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.lake.compaction import write_rows
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.table import DeltaLog
from penstock.storage import Storage
from penstock.tables.rollup.aggregate import MILLI
from penstock.tables.rollup.decide import PartialsFile
from penstock.tables.rollup.schema import WINDOWS_GROUP_ROWS_MAX

BATCH_ROWS_MAX = 131_072
WHOLE_BYTES_MAX = 4 * 1024 * 1024
"""Smaller files are read in one request."""
SPANNED = ("window_start",)
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ValueBounds = Mapping[str, tuple[int, int]]
"""Minimum and maximum of the chosen rows, by column of numbers or of instants in microseconds."""


def partials_files(partials: DeltaLog) -> tuple[PartialsFile, ...]:
    """Every file of partials in the loaded version."""
    return tuple(map(_partials_file, partials.active_files(SPANNED)))


def span_ms(file: ActiveFile, day: str | None) -> tuple[int, int]:
    """The starts of the first and the last window in a file; without statistics, of its day."""
    span = file.spans["window_start"]
    if span is not None:
        return _millis(span[0]), _millis(span[1])
    if day is None:
        raise InvariantError(f"a file of a rollup has no day: {file.path}")
    start = _millis(datetime.combine(date.fromisoformat(day), time(), UTC))
    return start, start + _DAY_MS - 1


def _partials_file(file: ActiveFile) -> PartialsFile:
    day, epoch = file.values
    if epoch is None or file.rows is None:
        raise InvariantError(f"a file of partials is not one that Penstock wrote: {file.path}")
    return PartialsFile(file.path, int(epoch), file.rows, *span_ms(file, day))


def _millis(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def write_options(table: DeltaLog, row_group_rows_max: int = WINDOWS_GROUP_ROWS_MAX) -> WriteOptions:
    """For files of a table with all its columns."""
    place = table.spec
    return WriteOptions(
        place.path,
        table.schema,
        dict(place.storage_options),
        place.partition_by,
        row_group_rows_max=row_group_rows_max,
    )


def stage_files(
    options: WriteOptions, name: Callable[[], str], batches: Iterable[pa.RecordBatch]
) -> tuple[StagedFile, ...]:
    """Write the rows to files with new names; no version refers to them yet."""
    return write_rows(StagedWriter(options, name, "", 0), batches)


def cut(buckets: range, pieces: int) -> list[range]:
    """Group adjacent items into at most so many non-empty groups of about the same size."""
    count = max(1, min(pieces, len(buckets)))
    ends = [buckets.start + len(buckets) * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def window_bounds(buckets: range, start_ms: int, end_ms: int) -> ValueBounds:
    """The bounds of rows of some buckets whose windows start in `[start, end)`."""
    return {"bucket": (buckets.start, buckets.stop - 1), **_starts(start_ms, end_ms)}


def starting_in(rows: pl.DataFrame, start_ms: int, end_ms: int) -> pl.DataFrame:
    """The rows whose windows start in `[start, end)`."""
    return within(rows, _starts(start_ms, end_ms))


def within(rows: pl.DataFrame, bounds: ValueBounds) -> pl.DataFrame:
    """The rows within bounds; the same frame if all rows are, because a copy takes much longer."""
    for name, (least, most) in bounds.items():
        values = rows[name].to_physical()
        first, last = values.min(), values.max()
        if not (isinstance(first, int) and isinstance(last, int) and least <= first and last <= most):
            rows = rows.filter(values.is_between(least, most))
    return rows


def scan(storage: Storage, path: str, schema: pa.Schema, bounds: ValueBounds | None = None) -> Iterator[pl.DataFrame]:
    """The rows of a file within bounds, in these columns; columns that the file lacks are null.

    Raises `NotFoundError` if the file does not exist.
    """
    for batch in read_batches(storage, path, schema, bounds):
        yield within(pl.DataFrame(pa.Table.from_batches([batch])), bounds or {})


def read_batches(
    storage: Storage, path: str, schema: pa.Schema, bounds: ValueBounds | None = None
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of all rows in the row groups that can have rows within bounds."""
    with _opened(storage, path) as file:
        try:
            # Without a pre-buffer only the column chunks of one row group are in memory.
            parquet = pq.ParquetFile(file, pre_buffer=False)
            columns = [name for name in schema.names if name in parquet.schema_arrow.names]
            groups = [
                number
                for number in range(parquet.num_row_groups)
                if _can_have(parquet.metadata.row_group(number), bounds or {})
            ]
            for batch in parquet.iter_batches(BATCH_ROWS_MAX, row_groups=groups, columns=columns, use_threads=False):
                yield fit_columns(batch, schema)
        except pa.ArrowException as error:
            raise InvariantError(f"cannot read {path} of {storage.url}", detail=str(error)) from error


def whole_rows(
    storage: Storage, file: ActiveFile, options: WriteOptions, bounds: ValueBounds | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in all columns of its table, as `read_batches` gives them, with its partition values."""
    constant = dict(zip(options.partition_by, file.scalars, strict=True))
    for batch in read_batches(storage, file.path, without(options.schema, options.partition_by), bounds):
        for name, value in constant.items():
            batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        yield fit_columns(batch, options.schema)


def without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The schema without some columns, such as the partition columns."""
    return pa.schema([column for column in schema if column.name not in names])


def _starts(start_ms: int, end_ms: int) -> ValueBounds:
    return {"window_start": (start_ms * MILLI, end_ms * MILLI - 1)}


def _opened(storage: Storage, path: str) -> IO[bytes]:
    """Read a small file as a whole, because each read of a column chunk is a request."""
    if storage.size_bytes(path) <= WHOLE_BYTES_MAX:
        return io.BytesIO(storage.read(path))
    return storage.open_reader(path)


def _can_have(group: pq.RowGroupMetaData, bounds: ValueBounds) -> bool:
    """Whether a row group can have rows within bounds, by its statistics."""
    for number in range(group.num_columns if bounds else 0):
        column = group.column(number)
        least, most = bounds.get(column.path_in_schema, (None, None))
        if least is None or most is None or not (column.is_stats_set and column.statistics.has_min_max):
            continue
        if column.statistics.min_raw > most or column.statistics.max_raw < least:
            return False
    return True
