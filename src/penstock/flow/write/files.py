"""Staged files of one table: one at a time per partition value, within the limits of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.flow.columns.partition_values import Values, check_partition_type, partition_folder, split_by_values
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.pool import FilePool, PoolLimits
from penstock.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class WriteOptions(PoolLimits):
    """What a task must know of a table to write files for it; travels to Spark tasks."""

    table_url: str
    schema: pa.Schema
    """Of the whole table, partition columns included."""
    storage_options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"


class StagedWriter(FilePool[Values]):
    """Writes the rows of one (topic, partition) of a task; `name` gives a fresh file name at each call."""

    def __init__(self, options: WriteOptions, name: Callable[[], str], topic: str, partition: int) -> None:
        super().__init__(options)
        for column in options.partition_by:
            check_partition_type(column, options.schema.field(column).type)
        self._options = options
        self._name = name
        self._place = topic, partition
        self._storage: Storage = open_storage(options.table_url, options.storage_options)
        self._file_schema = pa.schema([item for item in options.schema if item.name not in options.partition_by])
        self._files: list[StagedFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows whose columns have the order and the types of the options' schema."""
        if rows.num_rows == 0:
            return
        schema = self._options.schema
        columns = [rows.column(schema.get_field_index(name)) for name in self._options.partition_by]
        kept = [rows.column(schema.get_field_index(item.name)) for item in self._file_schema]
        body = pa.RecordBatch.from_arrays(kept, schema=self._file_schema)
        for values, group in split_by_values(body, columns):
            self._add(values, group)

    def finish(self) -> tuple[StagedFile, ...]:
        """Complete every file and report all that were staged."""
        self._complete()
        return tuple(self._files)

    def _open_file(self, key: Values, schema: pa.Schema) -> ParquetFile:
        path = partition_folder(self._named(key)) + self._name()
        return ParquetFile(self._storage, path, schema, self._options.compression)

    def _staged(self, key: Values, file: ParquetFile, stats: str) -> None:
        self._files.append(
            StagedFile(*self._place, file.path, file.rows, file.size_bytes, self._named(key), stats=stats)
        )

    def _named(self, values: Values) -> dict[str, str | None]:
        return dict(zip(self._options.partition_by, values, strict=True))
