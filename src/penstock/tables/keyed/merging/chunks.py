"""Chunks: the files of a keyed table, sorted by key, cut every so many rows, named after their content (RULES K4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import Content, with_content
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.stats import FileStats
from penstock.lake.storage import Storage, open_storage
from penstock.tables.keyed.layout import BUCKET, Layout, key_frame
from penstock.tables.keyed.merging.digest import digest_of
from penstock.tables.keyed.merging.packing import packed

ROW_GROUP_ROWS_MAX = 131_072


@dataclass(frozen=True)
class ChunkStore:
    """Reads and writes the files of a table."""

    table_url: str
    storage_options: Mapping[str, str]
    schema: pa.Schema
    """Of the files: all columns but the bucket."""
    layout: Layout
    chunk_rows: int

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.table_url, self.storage_options)

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file; those columns that it lacks are null."""
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        known = {folded(name) for name in wanted.names}
        with self.storage.open_reader(path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            there = [name for name in parquet.schema_arrow.names if folded(name) in known]
            rows = parquet.read(columns=there, use_threads=False).combine_chunks()
        if not rows.num_rows:
            return wanted.empty_table()
        return pa.Table.from_batches([fit_columns(rows.to_batches()[0], wanted)])

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in the order of their keys."""
        numbers = packed(key_frame(self.layout, rows).get_columns())
        return rows.take(pa.array(np.argsort(numbers, kind="stable")))

    def write(self, rows: pa.Table, bucket: int, name: Callable[[], str]) -> Iterator[StagedFile]:
        """Write sorted rows of one bucket, cut every so many; `name` gives a fresh name at each call."""
        for chunk in cut(rows, self.chunk_rows):
            yield self._write_one(chunk, bucket, name())

    def _write_one(self, rows: pa.Table, bucket: int, name: str) -> StagedFile:
        values = {BUCKET: str(bucket)}
        path = partition_folder(values) + with_content(name, Content(rows.num_rows, digest_of(rows)))
        stats = FileStats(self.schema)
        stats.note(rows)
        file = ParquetFile(self.storage, path, self.schema, "snappy")
        try:
            file.write(rows, ROW_GROUP_ROWS_MAX)
            footer = file.complete()
        except BaseException:
            file.abandon()
            raise
        return StagedFile("", 0, path, rows.num_rows, file.size_bytes, values, stats.as_json(footer))


def cut(rows: pa.Table, chunk_rows: int) -> Iterator[pa.Table]:
    """The rows in pieces of so many; the last may have fewer."""
    for first in range(0, rows.num_rows, chunk_rows):
        yield rows.slice(first, chunk_rows)


def file_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the files of a table."""
    return pa.schema([each for each in schema if each.name != BUCKET])
