"""The rows of a close that belong to one publish bucket, in the order in which they are published."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.delta.active_files import ActiveFile, active_files
from penstock.lake.delta.table import Table
from penstock.tables.rollup.closing.portion.scan import read_batches, with_partition_columns

ORDER = [("series", "ascending"), ("interval", "ascending"), ("window_start", "ascending")]


def rows_of(windows: Table, close: int, bucket: int, buckets: int) -> pa.Table:
    """In the columns of the table; the same rows in the same order, however often they are asked for."""
    schema, partition_by = windows.schema, windows.spec.partition_by
    inside = pa.schema([each for each in schema if each.name not in partition_by])
    storage = windows.storage()
    found = [
        with_partition_columns(batch.filter(_wanted(batch, close, bucket, buckets)), partition_by, file.scalars, schema)
        for file in _files(windows, close)
        for batch in read_batches(storage, file.path, inside)
    ]
    return pa.Table.from_batches(found, schema).sort_by(ORDER)


def _files(windows: Table, close: int) -> Iterator[ActiveFile]:
    for file in active_files(windows.handle, ("close",)):
        span = file.spans["close"]
        if span is None or span[0] <= close <= span[1]:
            yield file


def _wanted(batch: pa.RecordBatch, close: int, bucket: int, buckets: int) -> pa.Array:
    numbers = batch.column("bucket").cast(pa.int32())
    # Arrow has no remainder.
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, buckets), buckets))
    return pc.and_(pc.equal(batch.column("close"), close), pc.equal(rest, bucket))
