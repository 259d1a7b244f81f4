"""Rows that are filed under another partition value than their own columns give; found without the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import partition_value
from penstock.flow.rows import DecodedRows
from penstock.flow.write.names import parse_staged_name
from penstock.job.expressions import Call, Expression, KafkaField, fields, to_text
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.proof.findings import Violation, ViolationKind, earliest
from penstock.proof.offsets.owners import UNKNOWN_TOPIC, OriginColumns, TopicIncarnations
from penstock.proof.offsets.table import ROWS_PER_BATCH, DataFile, open_file, place_frame


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


def find_misfiled(
    job: JobSpec,
    table: Table,
    files: Iterable[DataFile],
    columns: OriginColumns | None,
    incarnations: TopicIncarnations,
) -> list[Misfiled]:
    """Compute the partition columns once more that only read columns which the table has.

    Rows of other jobs on the same table are left out, as far as names of files tell them apart.
    """
    found = [Misfiled(name, expression) for name, expression in _computed(job, table)]
    topics = sorted(incarnations.ids_of)
    topic = topics[0] if len(topics) == 1 else UNKNOWN_TOPIC
    for file in files:
        staged = parse_staged_name(file.path)
        if incarnations.other_ids and (staged is None or staged.topic_id in incarnations.other_ids):
            continue
        for misfiled in found:
            _check_file(job, table, file, columns, misfiled, topic)
    return [misfiled for misfiled in found if misfiled.rows]


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


def _check_file(
    job: JobSpec, table: Table, file: DataFile, columns: OriginColumns | None, misfiled: Misfiled, topic: str
) -> None:
    kind = table.schema.field(misfiled.column).type
    filed_under = partition_value(pa.scalar(file.partition_values.get(misfiled.column), kind))
    roots = {folded(field.path[0]) for field in fields(misfiled.expression)}
    decoded = pa.schema([field for field in job.schema if folded(field.name) in roots])
    for batch in _batches(table, file, roots, columns):
        rows = fit_columns(batch.select([name for name in batch.schema.names if folded(name) in roots]), decoded)
        values = evaluate(misfiled.expression, DecodedRows(rows, rows), {}).cast(kind)
        wrong = [value.as_py() for value in pc.unique(values) if partition_value(value) != filed_under]
        if not wrong:
            continue
        misplaced = pl.Series(pc.is_in(values, pa.array(wrong, kind)))
        misfiled.rows += int(misplaced.sum())
        if columns is not None:
            frame = place_frame(batch, columns, file.partition_values).filter(misplaced)
            for row in frame.drop_nulls(["partition", "offset"]).sort("partition", "offset").head(1).to_dicts():
                place = (row.get("topic") or topic, row["partition"], row["offset"])
                misfiled.first = earliest([misfiled.first, Violation(*place, ViolationKind.MISFILED)])


def _batches(table: Table, file: DataFile, roots: set[str], columns: OriginColumns | None) -> Iterator[pa.RecordBatch]:
    """The columns that a value is computed from, with the place of the rows; none of a file that lacks one of them."""
    try:
        parquet = open_file(table.storage(), file)
        names = parquet.schema_arrow.names
        if roots <= {folded(name) for name in names}:
            place = columns.names if columns is not None else ()
            wanted = [name for name in names if folded(name) in roots or name in place]
            yield from parquet.iter_batches(ROWS_PER_BATCH, columns=wanted)
    except (pa.ArrowException, OSError):
        # The check of offsets, or of files, names it.
        return
