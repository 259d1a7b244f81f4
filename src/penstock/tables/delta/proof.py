"""What `verify` proves of a single Delta table: its rows, their places and partition values, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import partition_value
from penstock.flow.compile import flow_of
from penstock.flow.rows import DecodedRows
from penstock.flow.stage import Stage
from penstock.flow.task import fused_stage
from penstock.job.expressions import Call, Expression, KafkaField, fields, to_text
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Batch, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, VALUES_OF_SQL, Proof, Violation, ViolationKind, earliest, violation_at
from penstock.proof.frame import prove
from penstock.proof.subject import DataFile, Depth, PlacedRows, Rewrite, Subject, place_of, table_source
from penstock.tables.single.facts import read_table


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    source = table_source(facts.table, place_of(job, facts.table.schema))
    subject = replace(
        facts.subject(job),
        sources=(source,),
        rows_written={source.name: facts.incarnations.rows_written},
        rewrite=VALUES_OF_SQL if job.sql is not None else rewrite_of(job, facts.table),
    )
    faults, first = find_misfiled(subject, facts.table)
    return prove(replace(subject, faults=faults, violation=first), depth, open_log)


def find_misfiled(subject: Subject, table: DeltaLog) -> tuple[tuple[str, ...], Violation | None]:
    """Rows whose partition value differs from the one computed from their other columns, and the first of them.

    Rows of other jobs on the same table are left out, as far as names of files distinguish them.
    """
    other_ids = subject.incarnations.other_ids
    [source] = subject.sources
    files = [file for file in source.files if not other_ids or file.topic_id not in {*other_ids, None}]
    faults: list[str] = []
    firsts: list[Violation] = []
    for column, expression in _computed(subject.job, table):
        count = 0
        for file in files:
            for partition, rows in _misfiled_rows(subject, file, column, expression, table.schema.field(column).type):
                count += len(rows)
                if len(rows) and isinstance(partition, Partition):
                    firsts.append(violation_at(partition, rows["offset"].sort()[0], ViolationKind.MISFILED))
        if count:
            faults.append(f"{count} rows are filed under another {column} than {to_text(expression)} gives")
    return tuple(faults), earliest(firsts)


def _computed(job: JobSpec, table: DeltaLog) -> Iterator[tuple[str, Expression]]:
    """The partition columns of the table that can be computed from columns in its files."""
    if job.sql is not None and job.sql.select:
        return
    expressions = {folded(name): expression for name, expression in job.columns.items()}
    in_files = {folded(name) for name in {*table.schema.names} - {*table.spec.partition_by}}
    for name in table.spec.partition_by:
        expression = expressions.get(folded(name))
        roots = [] if expression is None else [field.path[0] for field in fields(expression)]
        if expression is None or not roots or _reads_kafka(expression):
            continue
        if all(folded(root) in in_files and root not in job.drop for root in roots):
            yield name, expression


def _reads_kafka(expression: Expression) -> bool:
    return isinstance(expression, KafkaField) or (
        isinstance(expression, Call) and any(map(_reads_kafka, expression.args))
    )


def _misfiled_rows(
    subject: Subject, file: DataFile, column: str, expression: Expression, kind: pa.DataType
) -> Iterator[PlacedRows]:
    """The misfiled rows of a file; of a file that is older than a column, none."""
    [source] = subject.sources
    roots = {folded(field.path[0]) for field in fields(expression)}
    stored = [name for name in source.schema.names if folded(name) in roots]
    decoded = pa.schema([field for field in subject.job.schema if folded(field.name) in roots])
    try:
        for batch, placed in subject.placed_rows(source, file, stored):
            if not set(stored) <= set(batch.schema.names):
                return
            given = fit_columns(batch.select(stored), decoded)
            values = evaluate(expression, DecodedRows(given, given), {}).cast(kind)
            right = file.partition_values.get(column)
            wrong = [value.as_py() for value in pc.unique(values) if partition_value(value) != right]
            misfiled = pl.Series(pc.is_in(values, pa.array(wrong, kind)))
            yield from ((partition, rows.filter(misfiled.gather(rows["row"]))) for partition, rows in placed)
    except (pa.ArrowException, OSError):
        # The check of offsets, or of files, names it.
        return


def rewrite_of(job: JobSpec, table: DeltaLog) -> Rewrite:
    """The flow of a job with one table, without `sql:`, which needs Spark."""
    # Columns that the next run adds have no values yet.
    names = {folded(name) for name in table.schema.names}
    columns = {name: column for name, column in job.columns.items() if folded(name) in names}
    job = replace(
        job, columns=columns, drop=job.drop | {name for name in job.schema.names if folded(name) not in names}
    )

    def rewrite(piece: Slice, rows_url: str, quarantine_url: str) -> Stage:
        flow = flow_of(job, Batch("verify", (piece,)), table.schema, table.spec.partition_by, quarantine_url)
        return fused_stage(
            replace(
                flow,
                table=replace(flow.table, table_url=rows_url, storage_options={}),
                quarantine=replace(flow.quarantine, storage_options={}),
            )
        )

    return rewrite
