"""The Parquet files of a load, and the task that reads one of them, computes columns and writes its rows as runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from penstock.errors import UserError
from penstock.flow.columns.computed import Faults, evaluate
from penstock.flow.columns.fitting import by_folded_name, column_at, fit_columns, folded, grown
from penstock.flow.rows import DecodedRows
from penstock.flow.worker import spared_worker
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.report import report_batch
from penstock.job.expressions import Expression
from penstock.job.expressions import fields as fields_of
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import fingerprint
from penstock.storage import open_storage
from penstock.tables.keyed.layout import DELETE, RESERVED, SEQUENCE, deletions, key_faults
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName
from penstock.tables.keyed.merging.runs import RunWriter

BATCH_ROWS = 131_072
FRAME = "the data frame"
LOADED = -1
"""The sequence of rows of a load: older than every record of a log."""
CONVERT = "convert it, e.g. with DuckDB: COPY (FROM 'in.csv') TO 'in.parquet'; or with Spark: write.parquet"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Parquet file; it is sent to the task that reads it."""

    folder: str
    path: str
    size_bytes: int
    changed: str
    """The time of the last change."""
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.folder.rstrip('/')}/{self.path}"

    @property
    def mark(self) -> str:
        """Identifies a file that was loaded before."""
        return f"{fingerprint(f'{self.name} {self.size_bytes} {self.changed}'):016x}"


def source_files(paths: Sequence[str], options: Mapping[str, str], columns: pa.Schema) -> list[SourceFile]:
    """Every Parquet file under the paths, in their order and the order of names."""
    files = [file for path in paths for file in _under(path, options)]
    if not files:
        raise UserError(f"there are no files to load under {', '.join(paths)}", hint="name Parquet files, or folders")
    names = {folded(name) for name in columns.names}
    for file in files:
        for part in file.name.split("/")[:-1]:
            if "=" in part and folded(part.partition("=")[0]) in names:
                raise UserError(
                    f"{file.name}: the value of the folder {part} would be lost",
                    detail="folders `name=value` are not read as columns",
                    hint="write the files with this column inside, e.g. with DuckDB or Spark",
                )
    return files


def _under(path: str, options: Mapping[str, str]) -> Iterator[SourceFile]:
    folder, entries = path, sorted(open_storage(path, options).list(), key=lambda entry: entry.path)
    if not entries:
        folder, _, name = path.rpartition("/")
        folder = folder or "."
        entries = [entry for entry in open_storage(folder, options).list() if entry.path == name]
    for entry in entries:
        if entry.path.startswith("_delta_log/"):
            raise UserError(f"{path} is a Delta table: a load reads Parquet files", hint="write its rows as Parquet")
        if any(part.startswith((".", "_")) and "=" not in part for part in entry.path.split("/")):
            continue
        file = SourceFile(folder, entry.path, entry.size_bytes, entry.modified_at.isoformat(), options)
        if not entry.path.endswith((".parquet", ".pq")):
            raise UserError(f"{file.name} is not a Parquet file: a load reads .parquet and .pq", hint=CONVERT)
        yield file


class LoadTaskReport(msgspec.Struct, frozen=True):
    """The outcome of one file."""

    runs: tuple[StagedFile, ...] = ()
    rows: int = 0
    bad: int = 0
    first_fault: str = ""
    unreadable: str = ""
    """Why the table cannot take the rows."""


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Writes rows of files as runs; it is sent to the workers."""

    store: ChunkStore
    columns: pa.Schema
    """The columns of the table, without hidden ones."""
    fields: pa.Schema
    """The columns that files may have: fields of records, and columns of the table, computed ones too."""
    expressions: Mapping[str, Expression]
    ignores_new: bool
    """Whether columns that are not fields are ignored; otherwise they stop the load."""
    name: NewName

    @classmethod
    def of(cls, job: JobSpec, store: ChunkStore, columns: pa.Schema, name: NewName) -> LoadTask:
        """If `sql` selects columns, files must have the columns of the table."""
        ignores_new = job.on.new_column == "ignore"
        if job.sql is not None and job.sql.select:
            return cls(store, columns, columns, {}, ignores_new, name)
        return cls(store, columns, grown(job.schema, columns), job.columns, ignores_new, name)

    def take(self, numbered_file: tuple[int, SourceFile]) -> LoadTaskReport:
        """Write the rows of a file as runs. Of equal keys the file with the greater number wins."""
        number, file = numbered_file
        try:
            return self._written(number, file)
        except (pa.ArrowException, UserError) as error:
            return LoadTaskReport(unreadable=f"{file.name}: {error}")

    def _written(self, number: int, file: SourceFile) -> LoadTaskReport:
        with open_storage(file.folder, file.options).open_reader(file.path) as opened:
            parquet = pq.ParquetFile(opened, pre_buffer=False, coerce_int96_timestamp_unit="us")
            self._check_columns(file.name, parquet.schema_arrow)
            return self._runs((file.name, number), parquet.iter_batches(BATCH_ROWS, use_threads=False))

    def take_partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one partition of a data frame as runs; for `mapInArrow`."""
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        with spared_worker():
            try:
                report = self._runs((FRAME, number), self._checked(batches))
            except (pa.ArrowException, UserError) as error:
                report = LoadTaskReport(unreadable=str(error))
            yield report_batch(report)

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._check_columns(FRAME, batch.schema)
            yield batch

    def _runs(self, source: PartitionKey, batches: Iterable[pa.RecordBatch]) -> LoadTaskReport:
        layout = self.store.layout
        writer = RunWriter(layout, self.store.storage, source, self.name)
        rows = bad = 0
        first = ""
        for batch in batches:
            complete, unfit = _computed(_fitted(batch, self.fields), self.expressions)
            fitted = _fitted(complete, self.columns)
            faults = key_faults(layout, fitted) | unfit
            if faults and not first:
                row, fault = min(faults.items())
                first = f"{source[0]} row {rows + row + 1}: {fault}"
            bad += len(faults)
            rows += fitted.num_rows
            order = pa.repeat(pa.scalar(LOADED, pa.int64()), fitted.num_rows)
            gone = deletions(layout, DecodedRows(fitted, fitted.select([])))
            if not bad:
                writer.write(fitted.append_column(SEQUENCE, order).append_column(DELETE, gone))
        return LoadTaskReport(writer.finish(), rows, bad, first)

    def _check_columns(self, name: str, columns: pa.Schema) -> None:
        """Refuse unknown columns; those without any value, or with reserved names, are ignored."""
        fields = {*map(folded, self.fields.names), *RESERVED}
        new = [field for key, field in by_folded_name(columns, name).items() if key not in fields]
        names = [field.name for field in new if not pa.types.is_null(field.type)]
        if names and not self.ignores_new:
            raise UserError(f"the table has no column for {', '.join(names)}")


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the columns of the schema; other columns are dropped."""
    if batch.schema.equals(schema):
        return batch
    fields = {folded(field.name): field for field in schema}
    names = [name for name in batch.schema.names if folded(name) in fields]
    arrays = [batch.column(name).cast(fields[folded(name)].type) for name in names]
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, field.type) for field in schema], schema=schema)
    return fit_columns(pa.RecordBatch.from_arrays(arrays, names=names), schema)


def _computed(rows: pa.RecordBatch, columns: Mapping[str, Expression]) -> tuple[pa.RecordBatch, Faults]:
    """The rows with their computed columns, as records have them, and those for which an expression fails.

    Rows of files have no values of `kafka.*`. If all fields that an expression reads are null, the row keeps its own
    value: a file may be a copy of a table.
    """
    faults: Faults = {}
    places = {folded(name): place for place, name in enumerate(rows.schema.names)}
    unknown = [pa.nulls(rows.num_rows, field.type) for field in RECORD_SCHEMA]
    given = DecodedRows(rows, pa.RecordBatch.from_arrays(unknown, schema=RECORD_SCHEMA))
    for name, expression in columns.items():
        place = places.get(folded(name))
        if place is None:
            continue
        unfit: Faults = {}
        column = rows.schema.field(place)
        values = evaluate(expression, given, unfit).cast(column.type)
        for row, fault in unfit.items():
            faults.setdefault(row, f"{name}: {fault}")
        read = [pc.is_valid(column_at(given.columns, field.path)) for field in fields_of(expression)]
        can_compute = reduce(pc.or_, read, pa.repeat(False, rows.num_rows))
        own = pc.coalesce(given.columns.column(place), values)
        rows = rows.set_column(place, column, pc.if_else(can_compute, values, own))
    return rows, faults
