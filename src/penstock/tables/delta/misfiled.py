"""Rows that are filed under another partition value than their own columns give; found without the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import partition_value
from penstock.flow.rows import DecodedRows
from penstock.job.expressions import Call, Expression, KafkaField, fields, to_text
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.logs.log import Partition
from penstock.proof.files import ROWS_PER_BATCH, DataFile, RowSource, open_file, place_frame
from penstock.proof.findings import Violation, ViolationKind, earliest, violation_at
from penstock.proof.subject import Subject


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
