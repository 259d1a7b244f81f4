"""`penstock load`: rows of files, or of a source of Spark's, into a keyed table.

Commits say which files they hold.

A load that was interrupted goes on with the files that no commit names; one that is repeated finds nothing to do. An
overwrite is one commit: readers see the rows before it or those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import SparkSession

from penstock.environment import Environment, new_batch_id
from penstock.errors import TransientError, UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.write.manifest import StagedFile
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import Provenance, commits_of
from penstock.lake.delta.table import Change, Table
from penstock.lake.maintenance.compaction import Limit, gather
from penstock.lake.proposal import RemovedFile
from penstock.lake.staged import check_staged
from penstock.tables.keyed.files import ActiveFiles, commits_key, read_active, rows_key
from penstock.tables.keyed.layout import BUCKET, HIDDEN, RESERVED, Layout
from penstock.tables.keyed.loading.origin import Files, Origin, SparkSource
from penstock.tables.keyed.loading.sources import FORMATS, SourceFile, source_files
from penstock.tables.keyed.loading.task import LoadTarget, LoadTaskReport
from penstock.tables.keyed.merger import Merged, Merger, Runs
from penstock.tables.keyed.merging.plan import Meeting, Naming
from penstock.tables.keyed.merging.runs import RunTarget
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.table import bulk_key
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import LoadWish, SaveMode

BYTES_PER_COMMIT_MAX = 1024**3
FILES_PER_COMMIT_MAX = 1000
VERSIONS_TO_LAND_MAX = 1000
COMMITS_SEARCHED = 200
"""For an attempt whose answer was lost."""


def mark_key(job: str, file: SourceFile) -> str:
    """Says that the rows of a file are in the table."""
    return f"{job}#load/{file.mark}"


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


@dataclass(frozen=True, slots=True)
class Loader:
    """One load into a table."""

    job: JobSpec[KeyedSpec]
    data: Table
    spark: SparkSession
    environment: Environment

    def load(self, wish: LoadWish) -> LoadReport:
        """Bring the files into the table as the mode says."""
        if wish.by_partition:
            _check_by_partition(self.job.name, self.job.table.layout)
        by_spark = wish.format is not None and wish.format not in FORMATS
        if wish.options and not by_spark:
            raise UserError("options are for formats that Spark reads", hint=f"and not for {', '.join(FORMATS)}")
        files = [] if by_spark else source_files(wish.paths, wish.format, self.job.table.storage_options)
        self.data.refresh()
        known = [each for each in files if self.data.transaction(mark_key(self.job.name, each)) is not None]
        rows = read_active(self.data, self.job.table.layout).rows
        if rows and not known and wish.mode is SaveMode.IGNORE:
            return LoadReport()
        if rows and not known and wish.mode is SaveMode.ERROR:
            raise UserError(
                f"the table at {self.job.table.path} has {rows} rows",
                hint="--mode append adds and replaces by key, overwrite replaces the table, ignore does nothing",
            )
        if wish.mode is SaveMode.OVERWRITE:
            meeting = Meeting.PARTITIONS if wish.by_partition else Meeting.NONE
            return self._part(SparkSource(self.spark, wish) if by_spark else Files(tuple(files)), meeting)
        if by_spark:
            return self._part(SparkSource(self.spark, wish), Meeting.NOT_OLDER)
        fresh = [each for each in files if each not in known]
        size: Limit[SourceFile] = Limit(lambda each: each.size_bytes, BYTES_PER_COMMIT_MAX)
        report = LoadReport(files_known=len(known))
        for part in gather(fresh, size, Limit(lambda _: 1, FILES_PER_COMMIT_MAX)):
            report += self._part(Files(tuple(part)), Meeting.NOT_OLDER)
        return report

    def _part(self, origin: Origin, meeting: Meeting) -> LoadReport:
        """One commit."""
        self._take_columns(origin)
        naming = Naming(version_max=self.data.version + VERSIONS_TO_LAND_MAX)
        reports = self._read(origin, naming)
        self.environment.reach("runs_staged")
        runs = Runs(naming, tuple(run for each in reports for run in each.runs))
        tombstones = Tombstones(self.job, self.environment)
        merger = Merger(self.job, self.data, tombstones, self.spark, meeting)
        merged = self._commit(origin.files, merger, runs, meeting, tombstones)
        lost = sum(runs.superseded().values()) + sum(merged.skipped().values())
        unread = sum(each.report.unread for each in merged.buckets.values())
        return LoadReport(len(origin.files), 0, sum(each.rows for each in reports), lost, unread, commits=1)

    def _take_columns(self, origin: Origin) -> None:
        """Give the table the columns that rows bring, or say what becomes of them."""
        self.data.refresh()
        columns = _columns(self.data)
        known = {folded(name) for name in columns.names}
        fresh: dict[str, pa.Field] = {}
        for schema in origin.schemas(columns):
            for each in schema:
                if folded(each.name) not in known | RESERVED:
                    fresh.setdefault(folded(each.name), each)
        policy = self.job.on.new_column
        if not fresh or policy is NewColumnPolicy.IGNORE:
            return
        if policy is not NewColumnPolicy.ADD:
            names = ", ".join(each.name for each in fresh.values())
            raise UserError(f"the table has no column for {names}", hint="set `on.new_column: add` or `ignore`")
        self.data.add_columns(pa.schema([each.with_nullable(True).remove_metadata() for each in fresh.values()]))
        self.data.refresh()

    def _read(self, origin: Origin, naming: Naming) -> list[LoadTaskReport]:
        spec = self.job.table
        runs = RunTarget(spec.layout, spec.path, dict(spec.storage_options))
        reports = origin.read(self.spark, LoadTarget(_columns(self.data), runs, naming))
        unreadable = [each.unreadable for each in reports if each.unreadable]
        if unreadable:
            hint = "columns are read in the types that the table has"
            raise UserError("rows do not fit the table", detail=unreadable[0], hint=hint)
        bad = sum(each.bad for each in reports)
        if bad:
            raise UserError(
                f"{bad} rows have no place in the table",
                detail=next(each.first_fault for each in reports if each.first_fault),
                hint="a load has no quarantine: mend the files, or give partition keys a default by coalesce",
            )
        return reports

    def _commit(
        self, files: Sequence[SourceFile], merger: Merger, runs: Runs, meeting: Meeting, tombstones: Tombstones
    ) -> Merged:
        merged, batch, tried = Merged(), new_batch_id(), False
        marks = {mark_key(self.job.name, each): 1 for each in files}

        def decide() -> Change | None:
            nonlocal merged, tried
            if tried and self._is_there(batch):
                return None
            tried = True
            active = read_active(self.data, self.job.table.layout)
            merged = merger.brought_up(runs, merged)
            if self.data.version >= (runs.naming.version_max or 0):
                raise TransientError("too many other commits came between: load again")
            check_staged(self.data.storage(), merged.files)
            tombstones.append(merged.tombstones, self.data.schema, merged.tombstones_removed)
            self.environment.reach("tombstones_written")
            removes = _everything(active) if meeting is Meeting.NONE else merger.removed(merged)
            numbers = self._numbers(merger, merged, active, meeting)
            actions: list[AddAction | RemoveAction] = [self.data.remove_action(each) for each in removes]
            actions += [self.data.add_action(each) for each in merged.files]
            return Change(actions, {**numbers, **marks}, _told(self.job.name, batch, merged.files, len(removes)))

        self.data.swap(decide)
        self.environment.reach("committed")
        return merged

    def _is_there(self, batch: str) -> bool:
        """Whether an attempt whose answer was lost has landed (RULES C2)."""
        with library_errors(self.data.spec.path):
            history = self.data.handle.history(COMMITS_SEARCHED)
        return any(ours.batch == batch for _, ours in commits_of(history, self.job.name))

    def _numbers(self, merger: Merger, merged: Merged, active: ActiveFiles, meeting: Meeting) -> dict[str, int]:
        """What the commit counts; rows that an overwrite takes out of buckets are counted there."""
        job, lookup = self.job.name, self.data.transaction
        found = merger.numbers(merged)
        if lookup(bulk_key(job)):
            # Rows came that a bulk load did not bring: it would not see them.
            found[bulk_key(job)] = 0
        if meeting is Meeting.NONE:
            for bucket, files in active.by_bucket.items():
                key = commits_key(job, bucket)
                found.setdefault(key, (lookup(key) or 0) + 1)
                before = found.get(rows_key(job, bucket), lookup(rows_key(job, bucket)) or 0)
                found[rows_key(job, bucket)] = before - sum(each.rows for each in files)
        if meeting in (Meeting.NONE, Meeting.PARTITIONS):
            found[overwritten_key(job)] = (lookup(overwritten_key(job)) or 0) + 1
        return found


def _columns(data: Table) -> pa.Schema:
    return pa.schema([each for each in data.schema if each.name not in HIDDEN])


def _everything(active: ActiveFiles) -> tuple[RemovedFile, ...]:
    return tuple(
        RemovedFile(each.path, each.size_bytes, {BUCKET: str(bucket)})
        for bucket, files in active.by_bucket.items()
        for each in files
    )


def _told(job: str, batch: str, files: Sequence[StagedFile], removed: int) -> dict[str, Any]:
    rows, size_bytes = sum(each.rows for each in files), sum(each.size_bytes for each in files)
    return Provenance(
        kind="load",
        job=job,
        batch=batch,
        rows=rows,
        size_bytes=size_bytes,
        files_removed=removed,
        files_added=len(files),
    ).metadata


def _check_by_partition(job: str, layout: Layout) -> None:
    """Rows of one partition key have to be in one bucket: only buckets that the load touches are looked at."""
    if not layout.partition_keys:
        raise UserError(f"the table of {job} has no partition keys", hint="leave out --by-partition")
    if not layout.is_bucket_of_partition_key:
        raise UserError(
            f"the only partition key of {job} is the partition of the log: its rows are in many buckets",
            hint="leave out --by-partition, or give the table a further partition key when it is created",
        )
