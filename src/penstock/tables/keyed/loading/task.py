"""What a task of a load does: reads rows, computes columns and leaves the rows as sorted runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.flow.columns.computed import Faults, evaluate
from penstock.flow.columns.fitting import column_at, fit_columns, folded, grown
from penstock.flow.columns.seen_types import NewFields, add_fields, to_json
from penstock.flow.decode import Decoder, decoder_for
from penstock.flow.rows import DecodedRows
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import report_batch
from penstock.job.expressions import Expression
from penstock.job.expressions import fields as fields_of
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import DecodeSpec, JobSpec, NewColumnPolicy, Policies
from penstock.tables.keyed.layout import SEQUENCE, deletions, key_faults
from penstock.tables.keyed.loading.reading import FileRows, numbered, read_rows
from penstock.tables.keyed.loading.sources import SourceFile
from penstock.tables.keyed.merging.plan import Naming
from penstock.tables.keyed.merging.runs import DELETE, RunTarget, RunWriter

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
    new_fields: str = ""
    """What JSON objects have that neither the job nor the table has, as `flow.columns.seen_types` writes it."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """How rows of files become rows of a table: what they may have, and what is computed of it."""

    fields: pa.Schema
    """Those of a record, and the columns of the table, computed ones too."""
    expressions: Mapping[str, Expression]
    stated: pa.Schema
    on: Policies

    @classmethod
    def of(cls, job: JobSpec, columns: pa.Schema) -> RowReader:
        """For a table with these columns. If `sql` selects others than records have, files bring those of the table."""
        if job.sql is not None and job.sql.select:
            return cls(columns, {}, columns, job.on)
        return cls(grown(job.schema, columns), job.columns, job.schema, job.on)

    def decoder(self) -> Decoder:
        """Reads a JSON object as it reads a record; the driver decides about new fields."""
        on = replace(self.on, new_column=NewColumnPolicy.ADD)
        return decoder_for(DecodeSpec("json"), self.fields, on, stated=self.stated)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """What every task of a load needs to know."""

    columns: pa.Schema
    """Of the table, without those that it keeps for itself."""
    reader: RowReader
    runs: RunTarget
    naming: Naming

    def take_file(self, numbered_file: tuple[int, SourceFile]) -> LoadTaskReport:
        number, file = numbered_file
        decoder = self.reader.decoder() if file.format == "json" else None
        return self.take(file.name, number, read_rows(file, self.reader.fields, decoder), file.constants)

    def take(
        self, name: str, number: int, pieces: Iterable[FileRows], constants: Mapping[str, pa.Scalar]
    ) -> LoadTaskReport:
        """Leave rows as runs. Of loads with equal keys the greater number wins."""
        try:
            return self._written(name, number, pieces, constants)
        except pa.ArrowException as error:
            return LoadTaskReport(unreadable=f"{name}: {error}")

    def _written(
        self, name: str, number: int, pieces: Iterable[FileRows], constants: Mapping[str, pa.Scalar]
    ) -> LoadTaskReport:
        layout = self.runs.layout
        writer = RunWriter(self.runs, (name, number), self.naming.fresh)
        rows = bad = 0
        first = ""
        new_fields: NewFields = {}
        for piece in pieces:
            given = _with_constants(_fitted(piece.columns, self.reader.fields), constants)
            complete, unfit = _computed(given, self.reader.expressions)
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
        return LoadTaskReport(writer.finish(), rows, bad, first, new_fields=to_json(new_fields))


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


def _with_constants(rows: pa.RecordBatch, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """The rows with the values that hold for the whole file, where they have none themselves."""
    places = {folded(name): place for place, name in enumerate(rows.schema.names)}
    for name, value in constants.items():
        place = places.get(folded(name))
        if place is not None:
            field = rows.schema.field(place)
            same = pa.repeat(value.cast(field.type), rows.num_rows)
            rows = rows.set_column(place, field, _filled(rows.column(place), same))
    return rows


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
        own = _filled(given.columns.column(place), values)
        rows = rows.set_column(place, field, own if own is values else pc.if_else(can_compute, values, own))
    return rows, faults


def _filled(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, and where there is none the other one."""
    if values.null_count == len(values):
        return others
    return pc.coalesce(values, others) if values.null_count else values


@dataclass(frozen=True, slots=True)
class FrameStage:
    """Each task gets rows that Spark has read."""

    name: str
    target: LoadTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield report_batch(self.target.take(self.name, context.partitionId(), numbered(batches), {}))
