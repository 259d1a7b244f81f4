"""What `verify` proves of a single Delta table: its rows, their places and partition values, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import partition_value
from penstock.flow.compile import flow_of
from penstock.flow.rows import DecodedRows
from penstock.flow.task import fused_stage
from penstock.flow.write.report import decode_report
from penstock.job.expressions import Call, Expression, KafkaField, fields, to_text
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.files import (
    ROWS_PER_BATCH,
    DataFile,
    RowSource,
    data_file,
    open_file,
    place_frame,
    place_of,
    table_source,
)
from penstock.proof.findings import NO_TABLE, VALUES_OF_SQL, Proof, Violation, ViolationKind, earliest, violation_at
from penstock.proof.frame import prove
from penstock.proof.subject import Depth, Rewrite, Subject
from penstock.tables.single.facts import read_table


@dataclass(slots=True)
class Misfiled:
    """How many rows have another value of a partition column than it should have, and the first of them."""

    column: str
    expression: Expression
    rows: int = 0
    first: Violation | None = None
    """None where the rows do not carry their place."""

    def __str__(self) -> str:
        named = f", first {self.first.topic}/{self.first.partition} offset {self.first.offset}" if self.first else ""
        return f"{self.rows} rows are filed under another {self.column} than {to_text(self.expression)} gives{named}"


def find_misfiled(subject: Subject, table: Table) -> list[Misfiled]:
    """Compute the partition columns once more that only read columns which the table has.

    Rows of other jobs on the same table are left out, as far as names of files tell them apart.
    """
    other_ids = subject.incarnations.other_ids
    columns = [Misfiled(name, expression) for name, expression in _computed(subject.job, table)]
    for source in subject.sources if columns else ():
        for file in source.files:
            if other_ids and (file.topic_id is None or file.topic_id in other_ids):
                continue
            try:
                for column in columns:
                    _check_file(subject, source, file, column, table.schema.field(column.column).type)
            except (pa.ArrowException, OSError):
                # The check of offsets, or of files, names it.
                continue
    return [column for column in columns if column.rows]


def _computed(job: JobSpec, table: Table) -> Iterator[tuple[str, Expression]]:
    """The partition columns of the table that can be computed from the others."""
    if job.sql is not None and job.sql.select:
        return
    expressions = {folded(name): expression for name, expression in job.columns.items()}
    stored = {folded(name) for name in table.schema.names} - {folded(name) for name in table.spec.partition_by}
    for name in table.spec.partition_by:
        expression = expressions.get(folded(name))
        if expression is None or not _reads_fields_only(expression):
            continue
        roots = [field.path[0] for field in fields(expression)]
        if roots and all(folded(root) in stored and root not in job.drop for root in roots):
            yield name, expression


def _reads_fields_only(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return all(map(_reads_fields_only, expression.args))
    return not isinstance(expression, KafkaField)


def _check_file(subject: Subject, source: RowSource, file: DataFile, misfiled: Misfiled, kind: pa.DataType) -> None:
    roots = {folded(field.path[0]) for field in fields(misfiled.expression)}
    decoded = pa.schema([field for field in subject.job.schema if folded(field.name) in roots])
    parquet = open_file(source, file)
    names = parquet.schema_arrow.names
    if not roots <= {folded(name) for name in names}:
        return
    kept = set(source.place.names.values()) if source.place else set()
    wanted = [name for name in names if folded(name) in roots or name in kept]
    for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
        rows = fit_columns(batch.select([name for name in batch.schema.names if folded(name) in roots]), decoded)
        values = evaluate(misfiled.expression, DecodedRows(rows, rows), {}).cast(kind)
        right = file.partition_values.get(misfiled.column)
        wrong = [value.as_py() for value in pc.unique(values) if partition_value(value) != right]
        if not wrong:
            continue
        misplaced = pl.Series(pc.is_in(values, pa.array(wrong, kind)))
        misfiled.rows += int(misplaced.sum())
        if source.place is not None:
            places = place_frame(batch, source.place, file).filter(misplaced).sort("offset")
            for partition, found in subject.rows_by_partition(file, places):
                if isinstance(partition, Partition):
                    first = violation_at(partition, found["offset"][0], ViolationKind.MISFILED)
                    misfiled.first = earliest([misfiled.first, first])


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    source = table_source(facts.table, place_of(job, facts.table.schema))
    subject = replace(
        facts.subject(job),
        sources=(source,),
        rows_written={source.name: facts.incarnations.rows_written},
        rewrite=VALUES_OF_SQL if job.sql is not None else rewrite_of(job, facts.table, source),
    )
    misfiled = find_misfiled(subject, facts.table)
    violations = tuple(rows.first for rows in misfiled if rows.first is not None)
    return prove(replace(subject, faults=tuple(map(str, misfiled)), violations=violations), depth, open_log)


def rewrite_of(job: JobSpec, table: Table, source: RowSource) -> Rewrite:
    """The flow of a job with one table, without `sql:`, which needs Spark."""
    schema, partition_by = table.schema, table.spec.partition_by
    # Columns that the next run adds have no values yet.
    there = {folded(name) for name in schema.names}
    job = replace(job, columns={name: column for name, column in job.columns.items() if folded(name) in there})

    def rewrite(piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[RowSource]:
        rows = str(folder / "table")
        flow = flow_of(job, Batch("verify", (piece,)), schema, partition_by, str(folder / "quarantine"))
        flow = replace(
            flow,
            table=replace(flow.table, table_url=rows, storage_options={}),
            quarantine=replace(flow.quarantine, storage_options={}),
        )
        for report in fused_stage(flow)(records):
            for shares in decode_report(report.column(0)[0].as_py()).shares.values():
                staged = [file for share in shares.values() for file in share.files]
                files = [data_file(file.path, file.rows, values=file.partition_values) for file in staged]
                yield replace(source, storage=open_storage(rows, {}), files=files)

    return rewrite
