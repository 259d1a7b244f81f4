"""Files of closed windows of which some rows are replaced: written again without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import polars as pl
import pyarrow as pa

from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.tables.rollup.closing.portion.scan import as_frame, read_batches, scan, with_partition_columns
from penstock.tables.rollup.closing.portion.task import close_names, windows_storage

_KEY = ("series", "window_start")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file, the values of its partition columns, and the files of new rows with the same values."""

    path: str
    values: tuple[pa.Scalar, ...]
    updates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewriteFlow:
    """Everything that the tasks need to know."""

    windows: WriteOptions
    close: int
    owner: str


class RewriteReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task tells the driver."""

    files: tuple[StagedFile, ...]
    left_out: int
    """Rows that are replaced."""


def rewrite(flow: RewriteFlow, wanted: Rewrite) -> RewriteReport:
    """Write the rows of a file again that stay."""
    storage, schema = windows_storage(flow.windows), flow.windows.schema
    keys = _keys(flow, wanted.updates)
    inside = pa.schema([each for each in schema if each.name not in flow.windows.partition_by])
    writer = StagedWriter(flow.windows, close_names(flow.owner, flow.close), "", 0)
    left_out = 0
    try:
        for batch in read_batches(storage, wanted.path, inside):
            kept = batch.filter(_kept(batch, keys))
            left_out += batch.num_rows - kept.num_rows
            writer.write(with_partition_columns(kept, flow.windows.partition_by, wanted.values, schema))
        return RewriteReport(writer.finish(), left_out)
    except BaseException:
        writer.abandon()
        raise


def _keys(flow: RewriteFlow, updates: Sequence[str]) -> pl.DataFrame:
    schema = pa.schema([flow.windows.schema.field(name) for name in _KEY])
    storage = windows_storage(flow.windows)
    return pl.concat(rows for path in updates for rows in scan(storage, path, schema))


def _kept(batch: pa.RecordBatch, keys: pl.DataFrame) -> pa.Array:
    rows = as_frame(pa.Table.from_batches([batch.select(_KEY)])).with_row_index("row")
    kept = rows.join(keys, on=_KEY, how="anti")["row"]
    mask = pl.Series("kept", [False]).new_from_index(0, batch.num_rows).scatter(kept, True)
    return mask.to_arrow()
