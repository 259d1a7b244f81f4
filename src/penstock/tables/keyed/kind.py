"""The kind `keyed`: one Delta table with one row for each key, the last write wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec, job_of
from penstock.lake.compaction import CompactionGroup, CompactionLimits, Limit, Merged, Progress, group
from penstock.lake.delta.compact import FileGroup, compact_groups
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.opening import find_table, is_unused, open_or_create
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vacuum import NameRules, by_version, data_rules
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.logs.log import Log, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.reporting.model import Cell, CellState, JobStatus, PartitionColumn, Section, Strip
from penstock.spark.delta_spark import table_properties
from penstock.tables.keyed.files import chunk_store, files_by_bucket, touching_numbers
from penstock.tables.keyed.layout import (
    BUCKET,
    HIDDEN,
    RESERVED,
    SEQUENCE,
    SEQUENCES,
    TIEBREAK,
    sequences_type,
)
from penstock.tables.keyed.loading.load import LoadReport, TableLoad
from penstock.tables.keyed.lookup import keyed_frame
from penstock.tables.keyed.merging.chunks import fresh
from penstock.tables.keyed.proof import prove_keyed
from penstock.tables.keyed.record_rows import find_row, present_rows
from penstock.tables.keyed.spec import (
    LAYOUT_PROPERTY,
    KeyedSpec,
    decode_layout,
    delete_columns,
    encode_layout,
    type_faults,
)
from penstock.tables.keyed.table import KeyedTable, KeyedWriter
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import (
    CompactRequest,
    Kind,
    ReadRequest,
    RecordRows,
    SaveMode,
    StreamBatch,
    TableRow,
    VacuumRequest,
    Written,
)
from penstock.tables.single.facts import table_status
from penstock.tables.single.table import SingleKind, existing_table, vacuum
from penstock.tables.single.writer import row_columns


class KeyedKind(SingleKind):
    """One Delta table with one row for each key."""

    name = KeyedSpec.kind
    spec = KeyedSpec
    steps = ("runs_staged", "merged", "tombstones_written")
    mark = LAYOUT_PROPERTY

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> KeyedWriter:
        keyed = job_of(job, KeyedSpec)
        data = created(keyed, spark, environment)
        return KeyedWriter(keyed, KeyedTable(keyed, data, environment, log), spark, log)

    def load(
        self, job: JobSpec, paths: Sequence[str], mode: SaveMode, spark: SparkSession, environment: Environment
    ) -> LoadReport:
        keyed = job_of(job, KeyedSpec)
        return TableLoad(keyed, created(keyed, spark, environment), spark, mode).load(paths)

    def write(
        self, job: JobSpec, frame: DataFrame, mode: SaveMode, batch: StreamBatch | None, environment: Environment
    ) -> Written:
        keyed, spark = job_of(job, KeyedSpec), frame.sparkSession
        return TableLoad(keyed, created(keyed, spark, environment), spark, mode).write(frame, batch)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_keyed(job_of(job, KeyedSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        """The status of a single table, with its rows, buckets and chunks."""
        status = table_status(job, open_log, now)
        table = find_table(job.table, job.name)
        if table is None:
            return status
        files = table.active_files()
        rows, chunks = sum(file.rows_left for file in files), [len(held) for held in files_by_bucket(files).values()]
        most = max(chunks, default=0)
        values = {"rows": rows, "buckets": len(chunks), "chunks": sum(chunks), "chunks_max": most}
        line = f"{rows} rows in {sum(chunks)} chunks of {len(chunks)} buckets, at most {most} in one"
        # Records whose key has a newer one: read = written + superseded + quarantined + filtered.
        superseded = partial(PartitionColumn, "superseded", "superseded", "written")
        partitions = tuple(replace(shown, further=(superseded(shown.totals.skipped),)) for shown in status.partitions)
        sections = (*status.sections, Section("keyed", values, lines=(line,), strips=(_buckets(files),)))
        return replace(status, partitions=partitions, sections=sections)

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        """Merge small chunks of a bucket in the order of their keys, and write files with many deleted rows again.

        Rows, positions and totals do not change. It touches buckets like a batch (RULES K1, K3): a concurrent batch
        merges those buckets again. Expired tombstones are deleted.
        """
        request.refuse_all_days(f"the table of {job.name} has no days")
        keyed, table = job_of(job, KeyedSpec), existing_table(job, environment)
        table.refresh()
        target_bytes = request.target_bytes or job.flush.min_bytes_per_file
        groups = list(_small_chunks(keyed.table, table, target_bytes, request.effort))

        def merge(files: FileGroup, schema: pa.Schema, version_max: int) -> Merged[ActiveFile]:
            store = chunk_store(keyed.table, table)
            rows = store.sorted([store.left(file) for file in files.files])
            name = partial(fresh, compacted_name, version_max)
            return Merged(files, tuple(store.write(rows, int(files.files[0].values[0] or 0), name)))

        def numbers(merged: Sequence[Merged[ActiveFile]]) -> dict[str, int]:
            before = [file for done in merged for file in done.group.files]
            after = [file for done in merged for file in done.outputs]
            return touching_numbers(table, files_by_bucket(before), after, before)

        report = compact_groups(table, groups, merge, progress, numbers, request.effort)
        Tombstones(keyed, table).expire()
        return report

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        """Delete dead files: also runs whose slices are behind the position, and tombstones that no commit can name."""
        table = existing_table(job, environment)
        tombstones = find_table(job_of(job, KeyedSpec).table.tombstones_place, job.name, environment)

        def rules(tombstones: DeltaLog) -> NameRules:
            """Tombstones are committed before their batch, so the positions of the data table apply to them too."""
            of_data = data_rules(table)
            return NameRules(of_data.of_slice, by_version(tombstones), of_data.of_replay)

        return vacuum(table, dry_run=request.dry_run, alongside=() if tombstones is None else ((tombstones, rules),))

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        return present_rows(job_of(job, KeyedSpec), piece, records)

    def find_row(self, job: JobSpec, key: Mapping[str, str]) -> TableRow | None:
        return find_row(job_of(job, KeyedSpec), key)

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        # The table's own keys: with those of the job a lookup might search the wrong buckets.
        path = job.table.path
        marked = table_properties(spark, path).get(self.mark)
        if marked is None:
            raise UserError(f"the table at {path} has no keys", hint="was it created by another writer?")
        return self.read_table(path, marked, spark, request)

    def read_table(self, path: str, marked: str, spark: SparkSession, request: ReadRequest) -> DataFrame:
        request.refuse_type(f"the table at {path}")
        return keyed_frame(spark, path, decode_layout(marked), request.keys)


KIND: Kind = KeyedKind()
REWRITE_DELETED_SHARE = 0.3
"""A compaction writes a file again if more of its rows are deleted."""


def _buckets(files: Iterable[ActiveFile]) -> Strip:
    """The buckets with rows, the fullest of them as a whole cell."""
    buckets = files_by_bucket(files)
    rows = {bucket: sum(file.rows_left for file in held) for bucket, held in buckets.items()}
    cells = []
    for bucket, held in buckets.items():
        mib = sum(file.size_bytes for file in held) / 2**20
        detail = f"{rows[bucket]:,} rows in {len(held)} chunks, {mib:.1f} MiB"
        cells.append(Cell(str(bucket), CellState.FILLED, detail, rows[bucket] / (max(rows.values()) or 1)))
    return Strip("rows by bucket", tuple(cells))


def created(job: JobSpec[KeyedSpec], spark: SparkSession, environment: Environment) -> DeltaLog:
    """The table with at least the job's columns; key columns come first, so that Delta collects their statistics."""
    columns, policy = row_columns(job, spark)
    _refuse_reserved(columns, f"the job {job.name}")
    layout = job.table.layout
    named = [*layout.columns, *delete_columns(layout)]
    missing = [name for name in named if name not in columns.names and name not in HIDDEN]
    if missing:
        raise UserError(f"the rows of {job.name} have no column {missing[0]}", hint="keys are columns of the table")
    for setting, fault, hint in type_faults(layout, {column.name: column.type for column in columns}):
        raise UserError(f"{setting[0]}: {fault}", hint=hint)
    first = [columns.field(name) for name in layout.columns if name in columns.names]
    others = [column for column in columns if column not in first]
    schema = pa.schema([*first, *others, pa.field(SEQUENCE, pa.int64()), pa.field(TIEBREAK, pa.int64())])
    if layout.merge:
        schema = schema.append(pa.field(SEQUENCES, sequences_type(layout, schema)))
    existing = find_table(job.table, job.name, environment)
    if existing is not None and not is_unused(existing):
        # Before the table gets columns of a foreign job.
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


def _refuse_other_keys(table: DeltaLog, spec: KeyedSpec) -> None:
    stored = table.handle.metadata().configuration.get(LAYOUT_PROPERTY)
    if stored == encode_layout(spec.layout):
        return
    layout = "created by another writer, without keys" if stored is None else decode_layout(stored)
    raise UserError(
        f"the keys of the table at {spec.path} are not those of the job",
        detail=f"the table: {layout}; the job: {spec.layout}",
        hint="keys cannot change: write to a new table",
    )


def _small_chunks(spec: KeyedSpec, table: DeltaLog, target_bytes: int, effort: CompactionLimits) -> Iterator[FileGroup]:
    """Files with many deleted rows, each by itself; and small chunks of one bucket that are neighbours in their keys.

    These are grouped up to the rows of a chunk or the bytes of the target.
    """
    rows: Limit[ActiveFile] = Limit(lambda file: file.rows_left, spec.chunk_rows, firm=True)
    column = spec.layout.row_keys[0]
    for files in files_by_bucket(table.active_files((column,))).values():
        worn = [file for file in files if file.deleted > REWRITE_DELETED_SHARE * (file.rows or 0)]
        yield from (CompactionGroup((file,)) for file in worn)
        others = [file for file in files if file not in worn]
        small = [file for file in others if file.rows_left < spec.chunk_rows and file.size_bytes < target_bytes]
        for alike in effort.worthwhile(_by_key(small, column)):
            yield from group(alike, target_bytes, rows)


def _by_key(files: list[ActiveFile], column: str) -> list[ActiveFile]:
    """Sorted by the minimum of a column; files without this statistic come last."""
    bounded = [(span[0], file.path, file) for file in files if (span := file.spans[column]) is not None]
    return [*(file for *_, file in sorted(bounded)), *(file for file in files if file.spans[column] is None)]
