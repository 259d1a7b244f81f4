"""The kind `keyed`: one Delta table with one row for each key, the last write wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.job.spec import JobSpec, job_of
from penstock.lake.compaction import Progress
from penstock.lake.delta.table import Table, find_table, open_or_create
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.spark.delta_spark import table_properties
from penstock.status.model import JobStatus, Section
from penstock.tables.keyed.files import files_by_bucket
from penstock.tables.keyed.layout import (
    BUCKET,
    HIDDEN,
    RESERVED,
    SEQUENCE,
    SEQUENCES,
    TIEBREAK,
    is_key_type,
    sequences_type,
)
from penstock.tables.keyed.loading.load import Loader, LoadReport
from penstock.tables.keyed.lookup import keyed_frame
from penstock.tables.keyed.proof import prove_keyed
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSection, KeyedSpec, decode_layout, encode_layout, is_value
from penstock.tables.keyed.table import KeyedTable, KeyedWriter
from penstock.tables.keyed.upkeep import compact_keyed, vacuum_keyed
from penstock.tables.kind import CompactRequest, ReadRequest, SaveMode, VacuumRequest
from penstock.tables.single.facts import table_status
from penstock.tables.single.table import SingleKind, existing_table
from penstock.tables.single.writer import row_columns


class KeyedKind(SingleKind):
    """One Delta table with one row for each key."""

    name = KeyedSpec.kind
    section = KeyedSection()
    steps = ("runs_staged", "merged", "tombstones_written")
    mark = LAYOUT_PROPERTY

    def summary(self, job: JobSpec) -> str:
        return f"{self.name}, {job_of(job, KeyedSpec).table.layout}"

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> KeyedWriter:
        keyed = job_of(job, KeyedSpec)
        data = created(keyed, spark, environment)
        return KeyedWriter(keyed, KeyedTable(keyed, data, environment, log), spark, log)

    def load(
        self, job: JobSpec, paths: Sequence[str], mode: SaveMode, spark: SparkSession, environment: Environment
    ) -> LoadReport:
        keyed = job_of(job, KeyedSpec)
        return Loader(keyed, created(keyed, spark, environment), spark, mode).load(paths)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_keyed(job_of(job, KeyedSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        """As of any single table, with its rows, buckets and chunks."""
        status = table_status(job, open_log, now)
        table = find_table(job.table, job.name)
        if table is None:
            return status
        files = table.active_files()
        rows, chunks = sum(file.rows or 0 for file in files), [len(held) for held in files_by_bucket(files).values()]
        most = max(chunks, default=0)
        values = {"rows": rows, "buckets": len(chunks), "chunks": sum(chunks), "chunks_max": most}
        line = f"{rows} rows in {sum(chunks)} chunks of {len(chunks)} buckets, at most {most} in one"
        skipped = sum(partition.totals.skipped for partition in status.partitions)
        if skipped:
            line += f"; {skipped} records lost to newer ones of their keys"
        return replace(status, sections=(*status.sections, Section("keyed", values, lines=(line,))))

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        request.refuse_all_days(f"the table of {job.name} has no days")
        return compact_keyed(job_of(job, KeyedSpec), existing_table(job, environment), request, progress)

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        return vacuum_keyed(job_of(job, KeyedSpec), existing_table(job, environment), request.dry_run)

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        # The table's own word: with other keys a lookup would search the wrong buckets.
        path = job.table.path
        marked = table_properties(spark, path).get(self.mark)
        if marked is None:
            raise UserError(f"the table at {path} has no keys", hint="was it made by another writer?")
        return self.read_table(path, marked, spark, request)

    def read_table(self, path: str, marked: str, spark: SparkSession, request: ReadRequest) -> DataFrame:
        request.refuse_type(f"the table at {path}")
        return keyed_frame(spark, path, decode_layout(marked), request.keys)


def created(job: JobSpec[KeyedSpec], spark: SparkSession, environment: Environment) -> Table:
    """The table with at least the job's columns: those of the key first, for which every reader has statistics."""
    columns, policy = row_columns(job, spark)
    _refuse_reserved(columns, f"the job {job.name}")
    layout = job.table.layout
    named = [*layout.columns, *([] if layout.delete is None else [layout.delete.column])]
    missing = [name for name in named if name not in columns.names and name not in HIDDEN]
    if missing:
        raise UserError(f"the rows of {job.name} have no column {missing[0]}", hint="keys are columns of the table")
    for name in layout.keys:
        if not is_key_type(columns.field(name).type):
            raise UserError(f"{name} cannot be part of a key: it is {columns.field(name).type}")
    rule = layout.delete
    if rule is not None and not is_value(rule.value, columns.field(rule.column).type):
        kind = columns.field(rule.column).type
        raise UserError(f"delete: {rule.value!r} is no value of {rule.column}, which is {kind}")
    first = [columns.field(name) for name in layout.columns if name in columns.names]
    others = [column for column in columns if column not in first]
    schema = pa.schema([*first, *others, pa.field(SEQUENCE, pa.int64()), pa.field(TIEBREAK, pa.int64())])
    if layout.merge:
        schema = schema.append(pa.field(SEQUENCES, sequences_type(layout, schema)))
    existing = find_table(job.table, job.name, environment)
    if existing is not None:
        # Before the table gets columns of a job that is not its own.
        _refuse_other_keys(existing, job.table)
    table = open_or_create(job.table, job.name, schema.append(pa.field(BUCKET, pa.int32())), policy, environment)
    _refuse_other_keys(table, job.table)
    _refuse_reserved([item for item in table.schema if item.name not in HIDDEN], f"the table at {job.table.path}")
    return table


def _refuse_reserved(columns: Iterable[pa.Field], where: str) -> None:
    for column in columns:
        if folded(column.name) in RESERVED:
            raise UserError(
                f"{where} has a column {column.name}, a name that keyed tables keep for themselves",
                hint="rename the column, or write to a new table",
            )


def _refuse_other_keys(table: Table, spec: KeyedSpec) -> None:
    there = table.handle.metadata().configuration.get(LAYOUT_PROPERTY)
    if there == encode_layout(spec.layout):
        return
    known = "made by another writer, without keys" if there is None else decode_layout(there)
    raise UserError(
        f"the keys of the table at {spec.path} are not those of the job",
        detail=f"the table: {known}; the job: {spec.layout}",
        hint="keys cannot change: write to a new table",
    )
