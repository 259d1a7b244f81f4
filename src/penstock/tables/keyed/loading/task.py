"""What a task of a load does: reads rows, computes columns and leaves the rows as sorted runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.errors import UserError
from penstock.flow.columns.computed import Faults, evaluate
from penstock.flow.columns.fitting import by_folded_name, column_at, fit_columns, folded, grown
from penstock.flow.columns.seen_types import NewFields, add_fields, to_json
from penstock.flow.decode import Decoder, decoder_for
from penstock.flow.rows import DecodedRows
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import report_batch
from penstock.job.expressions import Expression
from penstock.job.expressions import fields as fields_of
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import DecodeSpec, JobSpec, NewColumnPolicy, Policies
from penstock.tables.keyed.layout import DELETE, RESERVED, SEQUENCE, deletions, key_faults
from penstock.tables.keyed.loading.reading import FileRows, SourceFile, numbered, read_rows
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName
from penstock.tables.keyed.merging.runs import RunWriter

LOADED = -1
"""The sequence of rows of a load: older than every record of a log."""


class LoadTaskReport(msgspec.Struct, frozen=True):
    """What became of the rows of a task."""

    runs: tuple[StagedFile, ...] = ()
    rows: int = 0
    bad: int = 0
    first_fault: str = ""
    unreadable: str = ""
    """Why the rows are not those that the table takes."""
    new_columns: bytes = b""
    """The schema of the columns of files that neither the job nor the table has."""
    new_fields: str = ""
    """What JSON objects have that neither the job nor the table has, as `flow.columns.seen_types` writes it."""


def row_fields(job: JobSpec, columns: pa.Schema) -> pa.Schema:
    """The fields that rows of files may have: those of a record, and the columns of the table, computed ones too.

    If `sql` selects others than records have, files bring those of the table.
    """
    return columns if job.sql is not None and job.sql.select else grown(job.schema, columns)


@dataclass(frozen=True, slots=True)
class LoadTask:
    """How rows of files become runs; it travels to the workers."""

    store: ChunkStore
    columns: pa.Schema
    """Of the table, without those that it keeps for itself."""
    fields: pa.Schema
    expressions: Mapping[str, Expression]
    on: Policies
    name: NewName

    @classmethod
    def of(cls, job: JobSpec, store: ChunkStore, columns: pa.Schema, name: NewName) -> LoadTask:
        fields = row_fields(job, columns)
        if fields is columns:
            return cls(store, columns, columns, {}, job.on, name)
        return cls(store, columns, fields, job.columns, job.on, name)

    def decoder(self) -> Decoder:
        """Reads a JSON object as it reads a record; the driver decides about new fields."""
        on = replace(self.on, new_column=NewColumnPolicy.ADD)
        return decoder_for(DecodeSpec("json"), self.fields, on)

    def take_file(self, numbered_file: tuple[int, SourceFile]) -> LoadTaskReport:
        number, file = numbered_file
        decoder = self.decoder() if file.format == "json" else None
        every_column = self.on.new_column is not NewColumnPolicy.IGNORE
        return self.take(file.name, number, read_rows(file, self.fields, decoder, every_column), file.constants)

    def take_frame(self, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows that Spark has read."""
        context = TaskContext.get()
        assert context is not None
        yield report_batch(self.take(name, context.partitionId(), numbered(batches), {}))

    def take(
        self, name: str, number: int, pieces: Iterable[FileRows], constants: Mapping[str, pa.Scalar]
    ) -> LoadTaskReport:
        """Leave rows as runs. Of equal keys the greater number wins."""
        try:
            return self._written(name, number, pieces, constants)
        except (pa.ArrowException, UnicodeDecodeError, csv.Error, UserError) as error:
            return LoadTaskReport(unreadable=f"{name}: {error}")

    def _written(
        self, name: str, number: int, pieces: Iterable[FileRows], constants: Mapping[str, pa.Scalar]
    ) -> LoadTaskReport:
        layout = self.store.layout
        writer = RunWriter(layout, self.store.storage, (name, number), self.name)
        rows = bad = 0
        first = ""
        new_columns = pa.schema([])
        new_fields: NewFields = {}
        for piece in pieces:
            given = _with_constants(piece.columns, constants)
            new_columns = new_columns if rows else _new_columns(name, given.schema, self.fields)
            complete, unfit = _computed(_fitted(given, self.fields), self.expressions)
            fitted = _fitted(complete, self.columns)
            unfit = key_faults(layout, fitted) | unfit
            faults = {**piece.faults, **{piece.numbers[row]: fault for row, fault in unfit.items()}}
            if faults and not first:
                place, fault = min(faults.items())
                first = f"{name} row {place}: {fault}"
            bad += len(faults)
            rows += fitted.num_rows + len(piece.faults)
            add_fields(new_fields, piece.new_fields)
            order = pa.repeat(pa.scalar(LOADED, pa.int64()), fitted.num_rows)
            gone = deletions(layout, fitted, pa.RecordBatch.from_pydict({}))
            if not bad:
                writer.write(fitted.append_column(SEQUENCE, order).append_column(DELETE, gone))
        columns = new_columns.serialize().to_pybytes()
        return LoadTaskReport(writer.finish(), rows, bad, first, "", columns, to_json(new_fields))


def _with_constants(rows: pa.RecordBatch, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """The rows with the values that hold for the whole file, where they have none themselves."""
    places = {folded(name): place for place, name in enumerate(rows.schema.names)}
    for name, value in constants.items():
        place = places.get(folded(name))
        if place is None:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        else:
            own = rows.column(place).cast(value.type)
            rows = rows.set_column(place, rows.schema.names[place], pc.coalesce(own, value))
    return rows


def _new_columns(name: str, columns: pa.Schema, fields: pa.Schema) -> pa.Schema:
    """The columns of a file that are no fields; one without any value has no type yet."""
    known = {*map(folded, fields.names), *RESERVED}
    new = [field for key, field in by_folded_name(columns, name).items() if key not in known]
    return pa.schema([field for field in new if not pa.types.is_null(field.type)])


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the columns of the schema; others are left out, which the driver has seen to."""
    if batch.schema.equals(schema):
        return batch
    known = {folded(name): schema.field(name) for name in schema.names}
    names = [each for each in batch.schema.names if folded(each) in known]
    arrays = [batch.column(each).cast(known[folded(each)].type) for each in names]
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, each.type) for each in schema], schema=schema)
    return fit_columns(pa.RecordBatch.from_arrays(arrays, names=names), schema)


def _computed(rows: pa.RecordBatch, columns: Mapping[str, Expression]) -> tuple[pa.RecordBatch, Faults]:
    """The rows with their computed columns, as records have them, and those for which an expression fails.

    No row of a file has what Kafka knows of a record. One that has no field that an expression reads keeps the value
    that it brings itself: a file may be a copy of a table.
    """
    faults: Faults = {}
    places = {folded(name): place for place, name in enumerate(rows.schema.names)}
    unknown = [pa.nulls(rows.num_rows, each.type) for each in RECORD_SCHEMA]
    given = DecodedRows(rows, pa.RecordBatch.from_arrays(unknown, schema=RECORD_SCHEMA))
    for name, expression in columns.items():
        place = places.get(folded(name))
        if place is None:
            continue
        unfit: Faults = {}
        field = rows.schema.field(place)
        values = evaluate(expression, given, unfit).cast(field.type)
        for row, fault in unfit.items():
            faults.setdefault(row, f"{name}: {fault}")
        read = [pc.is_valid(column_at(given.columns, each.path)) for each in fields_of(expression)]
        can_compute = reduce(pc.or_, read, pa.repeat(False, rows.num_rows))
        own = pc.coalesce(given.columns.column(place), values)
        rows = rows.set_column(place, field, pc.if_else(can_compute, values, own))
    return rows, faults
