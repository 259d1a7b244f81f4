"""`penstock load`: rows of files, or of a source of Spark's, into a keyed table.

Commits say which files they hold.

A load that was interrupted goes on with the files that no commit names; one that is repeated finds nothing to do. An
overwrite is one commit: readers see the rows before it or those after it. It takes rows of earlier loads out of the
table, so what commits before it said of their files does not count any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.environment import Environment, new_batch_id
from penstock.errors import PenstockError, TransientError, UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import from_json, merged
from penstock.flow.compile import collect_reports
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.compaction import Limit, gather
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.spark.failures import SPARK_ERRORS, refusal_of, spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.keyed.files import chunk_store, row_count
from penstock.tables.keyed.layout import HIDDEN, RESERVED, Layout
from penstock.tables.keyed.loading.reading import FORMATS, SourceFile, source_files
from penstock.tables.keyed.loading.task import LoadTask, LoadTaskReport, row_fields
from penstock.tables.keyed.merger import Merge
from penstock.tables.keyed.merging.chunks import NewName, fresh
from penstock.tables.keyed.merging.merge import Meeting
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import LoadWish, SaveMode
from penstock.tables.single.writer import add_fields

BYTES_PER_COMMIT_MAX = 1024**3
FILES_PER_COMMIT_MAX = 1000


def mark_key(job: str, file: SourceFile) -> str:
    """Says that the rows of a file are in the table."""
    return f"{job}#load/{file.mark}"


def set_key(job: str, files: Sequence[SourceFile]) -> str:
    """Says that a load of exactly these files began while the table had no rows."""
    marks = " ".join(sorted(file.mark for file in files))
    return f"{job}#load-set/{fingerprint(marks):016x}"


def loads_key(job: str) -> str:
    """How many commits of loads there were."""
    return f"{job}#loads"


def overwritten_key(job: str) -> str:
    """How often a load has replaced rows whatever their sequence."""
    return f"{job}#overwritten"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did."""

    files: int = 0
    files_known: int = 0
    """Those that the table had before."""
    rows: int = 0
    """Read from the files."""
    skipped: int = 0
    """Of them, those that lost to a newer row, or were there already."""
    unread: int = 0
    """Of the skipped, those that were known by the names of chunks alone."""
    commits: int = 0

    def __add__(self, other: LoadReport) -> LoadReport:
        mine, theirs = asdict(self), asdict(other)
        return LoadReport(**{name: mine[name] + theirs[name] for name in mine})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        known = f"; {self.files_known} were there already" if self.files_known else ""
        rows = f"{self.rows} rows, {self.skipped} of them skipped"
        yield f"{self.files} files loaded, {rows}, {self.commits} commits{known}"


Source = tuple[SourceFile, ...] | DataFrame
"""The rows of one commit: files that tasks read, or what a reader of Spark's reads. Only files are named by the commit:
a source of Spark's that is loaded again is read again."""


@dataclass(frozen=True, slots=True)
class Loader:
    """One load into a table."""

    job: JobSpec[KeyedSpec]
    data: Table
    spark: SparkSession
    environment: Environment
    wish: LoadWish

    def load(self) -> LoadReport:
        """Bring the files into the table as the mode says."""
        wish = self.wish
        if wish.by_partition:
            _check_by_partition(self.job.name, self.job.table.layout)
        by_spark = wish.format is not None and wish.format not in FORMATS
        if wish.options and not by_spark:
            raise UserError("options are for formats that Spark reads", hint=f"and not for {', '.join(FORMATS)}")
        self.data.refresh()
        fields = row_fields(self.job, self._columns())
        files = [] if by_spark else source_files(wish.paths, wish.format, self.job.table.storage_options, fields)
        if not self._takes_rows(files):
            return LoadReport()
        if by_spark:
            return self._part(self._frame(), files)
        if wish.mode is SaveMode.OVERWRITE:
            return self._part(tuple(files), files)
        marked = self._generation() + 1
        unknown = [file for file in files if self.data.transaction(mark_key(self.job.name, file)) != marked]
        size: Limit[SourceFile] = Limit(lambda file: file.size_bytes, BYTES_PER_COMMIT_MAX)
        report = LoadReport(files_known=len(files) - len(unknown))
        for part in gather(unknown, size, Limit(lambda _: 1, FILES_PER_COMMIT_MAX)):
            report += self._part(part, files)
        return report

    @property
    def _meeting(self) -> Meeting:
        if self.wish.mode is not SaveMode.OVERWRITE:
            return Meeting.NOT_OLDER
        return Meeting.PARTITIONS if self.wish.by_partition else Meeting.ALL

    def _takes_rows(self, files: Sequence[SourceFile]) -> bool:
        """Whether the mode lets the load write: to a table with rows, `error` and `ignore` only what they began."""
        rows = row_count(self.data)
        if not rows or self.wish.mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
            return True
        if files and self.data.transaction(set_key(self.job.name, files)) == self._generation() + 1:
            return True
        if self.wish.mode is SaveMode.IGNORE:
            return False
        raise UserError(
            f"the table at {self.job.table.path} has {rows} rows",
            hint="--mode append adds and replaces by key, overwrite replaces the table, ignore does nothing",
        )

    def _generation(self) -> int:
        """How often any job has overwritten rows of the table. A mark counts only if it is the number after that."""
        ending = overwritten_key("")
        return sum(number for key, number in self.data.transactions().items() if key.endswith(ending))

    def _columns(self) -> pa.Schema:
        return pa.schema([field for field in self.data.schema if field.name not in HIDDEN])

    def _frame(self) -> DataFrame:
        wish = self.wish
        reader = self.spark.read.format(str(wish.format)).options(**wish.options)
        try:
            return reader.load(list(wish.paths)) if wish.paths else reader.load()
        except SPARK_ERRORS as error:
            raise UserError(
                f"Spark cannot read {self._frame_name}",
                detail=refusal_of(error),
                hint="the jars of a format go to spark.conf of the job file, as spark.jars or spark.jars.packages",
            ) from error

    @property
    def _frame_name(self) -> str:
        return f"{self.wish.format} {' '.join(self.wish.paths)}".strip()

    def _part(self, source: Source, files: Sequence[SourceFile]) -> LoadReport:
        """One commit of the load of all `files`.

        Its runs are deleted once it has succeeded or failed: no commit names them, and no other process reads them.
        Those of a process that dies are left to vacuum.
        """
        self.data.refresh()
        version_max = self.data.version + VERSIONS_TO_LAND_MAX
        name = partial(fresh, compacted_name, version_max)
        runs: list[StagedFile] = []
        try:
            reports = self._read(source, name, runs)
            if self._added_columns(reports):
                reports = self._read(source, name, runs)
            self.environment.reach("runs_staged")
            in_runs = [run for report in reports for run in report.runs]
            tombstones = Tombstones(self.job, self.data)
            merge = Merge(self.job, self.data, tombstones, self.spark, in_runs, name, self._meeting)
            part = source if isinstance(source, tuple) else ()
            self._commit(part, merge, version_max, files)
        except PenstockError:
            self._delete(runs)
            raise
        self._delete(runs)
        rows = sum(report.rows for report in reports)
        skipped = rows - sum(run.rows for run in in_runs) + merge.skipped.total()
        return LoadReport(len(part), 0, rows, skipped, sum(report.unread for report in merge.reports), commits=1)

    def _delete(self, runs: Iterable[StagedFile]) -> None:
        storage = self.data.storage()
        with suppress(PenstockError):
            for run in runs:
                storage.delete(run.path)

    def _read(self, source: Source, name: NewName, runs: list[StagedFile]) -> list[LoadTaskReport]:
        """One Spark job, which leaves the rows as runs."""
        task = LoadTask.of(self.job, chunk_store(self.job.table, self.data), self._columns(), name)
        if isinstance(source, tuple):
            if any(file.format == "json" for file in source):
                # Columns that JSON cannot have are refused here, not in a task.
                task.decoder()
            reports = run_each(self.spark, task.take_file, tuple(enumerate(source)), LoadTaskReport, of="files")
        else:
            with spark_errors(self.spark):
                count, take = source.rdd.getNumPartitions(), partial(task.take_frame, self._frame_name)
                frame = source.mapInArrow(take, from_arrow_schema(REPORT_SCHEMA))
                reports = collect_reports(frame, LoadTaskReport, count)
        runs += [run for report in reports for run in report.runs]
        _check_readable(reports)
        return reports

    def _added_columns(self, reports: Sequence[LoadTaskReport]) -> bool:
        """Give the table the columns that rows bring, as the policy says; then they are read again."""
        policy = self.job.on.new_column
        columns: dict[str, pa.Field] = {}
        for report in reports:
            for field in pa.ipc.read_schema(pa.py_buffer(report.new_columns)) if report.new_columns else ():
                columns.setdefault(folded(field.name), field.with_nullable(True).remove_metadata())
        seen = merged(from_json(report.new_fields) for report in reports)
        fields = {
            name: types for name, types in seen.items() if name not in self.job.drop and folded(name) not in RESERVED
        }
        names = [*(field.name for field in columns.values()), *fields]
        if names and policy not in (NewColumnPolicy.ADD, NewColumnPolicy.IGNORE):
            hint = "set `on.new_column: add` or `ignore`"
            raise UserError(f"the table has no column for {', '.join(names)}", hint=hint)
        if not names or policy is NewColumnPolicy.IGNORE:
            return False
        before, known = self.data.schema, row_fields(self.job, self._columns()).names
        if columns:
            self.data.add_columns(pa.schema(list(columns.values())))
        add_fields(self.data, self.job, fields, known, self.environment.listener)
        return not self.data.schema.equals(before)

    def _commit(self, part: Sequence[SourceFile], merge: Merge, version_max: int, files: Sequence[SourceFile]) -> None:
        batch, tried = new_batch_id(), False

        def decide() -> Change | None:
            nonlocal tried
            # An attempt whose answer was lost may have landed (RULES C2).
            if tried and any(commit.batch == batch for commit in self.data.commits()):
                return None
            tried = True
            rows = row_count(self.data)
            if not self._takes_rows(files):
                raise UserError(f"{rows} rows came into the table while files were read", hint="load again")
            merge.bring_up()
            if self.data.version >= version_max:
                raise TransientError("too many other commits came between: load again")
            check_staged(self.data.storage(), merge.files)
            merge.remember_deleted()
            removes = merge.removes()
            marked = [mark_key(self.job.name, file) for file in part]
            if files and not rows and self.wish.mode in (SaveMode.ERROR, SaveMode.IGNORE):
                marked.append(set_key(self.job.name, files))
            overwrites = int(self.wish.mode is SaveMode.OVERWRITE)
            numbers = merge.numbers(removes) | dict.fromkeys(marked, self._generation() + overwrites + 1)
            for key, added in ((loads_key(self.job.name), 1), (overwritten_key(self.job.name), overwrites)):
                if added:
                    numbers[key] = (self.data.transaction(key) or 0) + added
            actions: list[AddAction | RemoveAction] = [self.data.remove_action(file) for file in removes]
            actions += [self.data.add_action(file) for file in merge.files]
            record = Provenance(
                kind="load",
                job=self.job.name,
                batch=batch,
                rows=sum(file.rows for file in merge.files),
                size_bytes=sum(file.size_bytes for file in merge.files),
                files_removed=len(removes),
                files_added=len(merge.files),
            )
            return Change(actions, numbers, record.metadata)

        self.data.swap(decide)
        self.environment.reach("committed")


def _check_readable(reports: Sequence[LoadTaskReport]) -> None:
    unreadable = [report.unreadable for report in reports if report.unreadable]
    if unreadable:
        hint = "columns are read in the types that the table has"
        raise UserError("rows do not fit the table", detail=unreadable[0], hint=hint)
    bad = sum(report.bad for report in reports)
    if bad:
        raise UserError(
            f"{bad} rows have no place in the table",
            detail=next(report.first_fault for report in reports if report.first_fault),
            hint="a load has no quarantine: fix the files, or give partition keys a default by coalesce",
        )


def _check_by_partition(job: str, layout: Layout) -> None:
    """Rows of one partition key have to be in one bucket: only buckets that the load touches are looked at."""
    if not layout.partition_keys:
        raise UserError(f"the table of {job} has no partition keys", hint="leave out --by-partition")
    if not layout.is_bucket_of_partition_key:
        raise UserError(
            f"the only partition key of {job} is the partition of the log: its rows are in many buckets",
            hint="leave out --by-partition, or give the table a further partition key when it is created",
        )
