"""The last stage of a task: rows into staged Parquet files, one per partition value, within named limits (I6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.columns.partition_values import Values, check_partition_type, partition_folder, split_by_values
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.parquet_file import ROW_GROUP_ROWS_MAX, ParquetFile
from penstock.flow.write.stats import Leaf, Path, TextBounds, delta_stats, indexed_leaves, nan_paths, note_long_texts
from penstock.lake.storage import Storage, open_storage

MEBIBYTE = 1024**2


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a task must know of a table to write files for it; travels to Spark tasks."""

    table_url: str
    schema: pa.Schema
    """Of the whole table, partition columns included."""
    storage_options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    open_writers_max: int = 16
    row_group_bytes_max: int = 64 * MEBIBYTE
    """In memory. A row group passes it by one batch of rows at most."""
    row_group_rows_max: int = ROW_GROUP_ROWS_MAX
    pending_bytes_max: int = 128 * MEBIBYTE
    """Rows that wait for their row groups, over all open files; kept memory is at most twice that."""
    file_bytes_max: int = 1024 * MEBIBYTE
    """A file passes it by one row group at most."""
    compression: str = "snappy"
    indexed_columns_max: int = 32


class StagedWriter:
    """Writes the rows of one (topic, partition) of a task; `name` gives a fresh file name at each call."""

    def __init__(self, options: WriteOptions, name: Callable[[], str], topic: str, partition: int) -> None:
        for column in options.partition_by:
            check_partition_type(column, options.schema.field(column).type)
        self._options = options
        self._name = name
        self._topic = topic
        self._partition = partition
        self._storage: Storage = open_storage(options.table_url, options.storage_options)
        self._file_schema = pa.schema([each for each in options.schema if each.name not in options.partition_by])
        self._leaves = indexed_leaves(self._file_schema, options.indexed_columns_max)
        self._open: OrderedDict[Values, _OpenFile] = OrderedDict()
        self._staged: list[StagedFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows whose columns have the order and the types of the options' schema."""
        if rows.num_rows == 0:
            return
        schema = self._options.schema
        columns = [rows.column(schema.get_field_index(name)) for name in self._options.partition_by]
        kept = [rows.column(schema.get_field_index(each.name)) for each in self._file_schema]
        body = pa.RecordBatch.from_arrays(kept, schema=self._file_schema)
        for values, group in split_by_values(body, columns):
            self._add(values, group)

    def finish(self) -> tuple[StagedFile, ...]:
        """Complete every file and tell of all that were staged."""
        while self._open:
            self._stage(next(iter(self._open)))
        return tuple(self._staged)

    def abandon(self) -> None:
        """Let go of every open file after an error; what lies in the table's folder is vacuum's (RULES C2)."""
        for each in self._open.values():
            each.abandon()
        self._open.clear()

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= self._options.open_writers_max:
                self._stage(next(iter(self._open)))
            file = self._open[values] = _OpenFile(self._storage, self._path(values), self._file_schema, self._options)
        self._open.move_to_end(values)
        file.pend(rows)
        if (
            file.pending_bytes >= self._options.row_group_bytes_max
            or file.pending_rows >= self._options.row_group_rows_max
        ):
            self._write_pending(values)
        while sum(each.pending_bytes for each in self._open.values()) > self._options.pending_bytes_max:
            self._write_pending(max(self._open, key=lambda each: self._open[each].pending_bytes))

    def _write_pending(self, values: Values) -> None:
        file = self._open[values]
        file.write_pending(self._leaves)
        if file.size_bytes >= self._options.file_bytes_max:
            self._stage(values)

    def _stage(self, values: Values) -> None:
        file = self._open[values]
        footer = file.complete(self._leaves)
        staged = StagedFile(
            topic=self._topic,
            partition=self._partition,
            path=file.path,
            rows=footer.num_rows,
            size_bytes=file.size_bytes,
            partition_values=self._named(values),
            stats=delta_stats(footer, self._leaves, frozenset(file.with_nan), file.long_texts),
        )
        # Only now: a file that failed to complete is still there to be abandoned.
        del self._open[values]
        self._staged.append(staged)

    def _path(self, values: Values) -> str:
        return partition_folder(self._named(values)) + self._name()

    def _named(self, values: Values) -> dict[str, str | None]:
        return dict(zip(self._options.partition_by, values, strict=True))


class _OpenFile:
    """A Parquet file and the rows that wait for its next row group."""

    def __init__(self, storage: Storage, path: str, schema: pa.Schema, options: WriteOptions) -> None:
        self.pending_bytes = 0
        self.pending_rows = 0
        self.with_nan: set[Path] = set()
        self.long_texts: TextBounds = {}
        self._pending: list[pa.RecordBatch] = []
        self._rows_max = options.row_group_rows_max
        self._schema = schema
        self._file = ParquetFile(storage, path, schema, options.compression)

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def pend(self, rows: pa.RecordBatch) -> None:
        self._pending.append(rows)
        self.pending_bytes += rows.nbytes
        self.pending_rows += rows.num_rows

    def write_pending(self, leaves: tuple[Leaf, ...]) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending, self._schema)
        self.with_nan |= nan_paths(rows, leaves)
        note_long_texts(self.long_texts, rows, leaves)
        self._file.write(rows, self._rows_max)
        self._pending.clear()
        self.pending_bytes = self.pending_rows = 0

    def complete(self, leaves: tuple[Leaf, ...]) -> pq.FileMetaData:
        self.write_pending(leaves)
        return self._file.complete()

    def abandon(self) -> None:
        self._file.abandon()
