"""`penstock load`: rows of files, or of a source of Spark's, into a keyed table.

Commits say which files they hold.

A load that was interrupted goes on with the files that no commit names; one that is repeated finds nothing to do. An
overwrite is one commit: readers see the rows before it or those after it. It takes rows of earlier loads out of the
table, so what commits before it said of their files does not count any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import SparkSession

from penstock.environment import Environment, new_batch_id
from penstock.errors import PenstockError, TransientError, UserError
from penstock.events import FieldsLeftOut
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import addable, column_types, from_json, left_out
from penstock.flow.columns.seen_types import merged as merged_fields
from penstock.flow.write.manifest import StagedFile
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import Provenance, commits_of
from penstock.lake.delta.table import Change, Table
from penstock.lake.maintenance.compaction import Limit, gather
from penstock.lake.proposal import RemovedFile
from penstock.lake.staged import check_staged
from penstock.tables.keyed.files import ActiveFiles, commits_key, read_active
from penstock.tables.keyed.layout import BUCKET, HIDDEN, RESERVED, Layout
from penstock.tables.keyed.loading.origin import Files, Origin, SparkSource
from penstock.tables.keyed.loading.sources import FORMATS, SourceFile, source_files
from penstock.tables.keyed.loading.task import LoadTarget, LoadTaskReport, RowReader
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
_OVERWRITES = (Meeting.NONE, Meeting.PARTITIONS)
"""Of a load: rows of earlier loads are taken out of the table."""


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
        self.data.refresh()
        fields = self._reader().fields
        files = [] if by_spark else source_files(wish.paths, wish.format, self.job.table.storage_options, fields)
        if not self._takes_rows(wish, files, read_active(self.data, self.job.table.layout).rows):
            return LoadReport()
        if by_spark:
            return self._part(SparkSource(self.spark, wish), wish, files)
        if wish.mode is SaveMode.OVERWRITE:
            return self._part(Files(tuple(files)), wish, files)
        marked = self._generation() + 1
        unknown = [file for file in files if self.data.transaction(mark_key(self.job.name, file)) != marked]
        size: Limit[SourceFile] = Limit(lambda file: file.size_bytes, BYTES_PER_COMMIT_MAX)
        report = LoadReport(files_known=len(files) - len(unknown))
        for part in gather(unknown, size, Limit(lambda _: 1, FILES_PER_COMMIT_MAX)):
            report += self._part(Files(tuple(part)), wish, files)
        return report

    def _takes_rows(self, wish: LoadWish, files: Sequence[SourceFile], rows: int) -> bool:
        """Whether the mode lets the load write: to a table with rows, `error` and `ignore` only what they began."""
        if not rows or wish.mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
            return True
        if files and self.data.transaction(set_key(self.job.name, files)) == self._generation() + 1:
            return True
        if wish.mode is SaveMode.IGNORE:
            return False
        raise UserError(
            f"the table at {self.job.table.path} has {rows} rows",
            hint="--mode append adds and replaces by key, overwrite replaces the table, ignore does nothing",
        )

    def _generation(self) -> int:
        """How often any job has overwritten rows of the table. A mark counts only if it is the number after that."""
        ending = overwritten_key("")
        return sum(number for key, number in self.data.transactions().items() if key.endswith(ending))

    def _reader(self) -> RowReader:
        return RowReader.of(self.job, _columns(self.data))

    def _part(self, origin: Origin, wish: LoadWish, files: Sequence[SourceFile]) -> LoadReport:
        """One commit of the load of all `files`."""
        self._take_columns(origin)
        naming = Naming(version_max=self.data.version + VERSIONS_TO_LAND_MAX)
        with self._temporary_runs() as temporary:
            reports = self._read(origin, naming, temporary)
            if self._take_new_fields(reports):
                reports = self._read(origin, naming, temporary)
            self.environment.reach("runs_staged")
            runs = Runs(naming, tuple(run for report in reports for run in report.runs))
            merged = self._commit(origin.files, runs, wish, files)
        lost = sum(runs.superseded().values()) + sum(merged.skipped().values())
        unread = sum(each.report.unread for each in merged.buckets.values())
        return LoadReport(len(origin.files), 0, sum(each.rows for each in reports), lost, unread, commits=1)

    @contextmanager
    def _temporary_runs(self) -> Iterator[list[StagedFile]]:
        """Takes runs that are deleted once the load has succeeded or failed.

        No commit names them, and no other process reads them. Those of a process that dies are left to vacuum.
        """
        runs: list[StagedFile] = []
        failure: PenstockError | None = None
        try:
            yield runs
        except PenstockError as error:
            failure = error
        storage = self.data.storage()
        with suppress(PenstockError):
            for run in runs:
                storage.delete(run.path)
        if failure is not None:
            raise failure

    def _take_columns(self, origin: Origin) -> None:
        """Give the table the columns that rows bring, or say what becomes of them."""
        self.data.refresh()
        fields = self._reader().fields
        known = {*map(folded, fields.names), *RESERVED}
        new: dict[str, pa.Field] = {}
        for schema in origin.schemas(fields):
            for field in schema:
                # A column without any value has no type yet.
                if folded(field.name) not in known and not pa.types.is_null(field.type):
                    new.setdefault(folded(field.name), field)
        if self._adds([field.name for field in new.values()]):
            self.data.add_columns(pa.schema([field.with_nullable(True).remove_metadata() for field in new.values()]))
            self.data.refresh()

    def _take_new_fields(self, reports: Sequence[LoadTaskReport]) -> bool:
        """The same for what JSON objects have; whether there are new columns, so that the files are read again."""
        seen = merged_fields(from_json(report.new_fields) for report in reports)
        fields = {
            name: types for name, types in seen.items() if name not in self.job.drop and folded(name) not in RESERVED
        }
        if not self._adds(list(fields)):
            return False
        before = self.data.schema
        columns = addable(column_types(fields, self.job.on.mixed_types), before.names, self._reader().fields.names)
        ignored = left_out(fields, columns)
        if ignored:
            reason = "they cannot be names of new columns"
            self.environment.listener.event(FieldsLeftOut(fields=ignored, reason=reason))
        if not len(columns):
            return False
        self.data.add_columns(columns)
        self.data.refresh()
        return True

    def _adds(self, names: Sequence[str]) -> bool:
        """Whether there are columns to add; an error if the job does not want them."""
        policy = self.job.on.new_column
        if names and policy not in (NewColumnPolicy.ADD, NewColumnPolicy.IGNORE):
            hint = "set `on.new_column: add` or `ignore`"
            raise UserError(f"the table has no column for {', '.join(names)}", hint=hint)
        return bool(names) and policy is NewColumnPolicy.ADD

    def _read(self, origin: Origin, naming: Naming, temporary: list[StagedFile]) -> list[LoadTaskReport]:
        spec = self.job.table
        runs = RunTarget(spec.layout, spec.path, dict(spec.storage_options))
        reports = origin.read(self.spark, LoadTarget(_columns(self.data), self._reader(), runs, naming))
        temporary += [run for report in reports for run in report.runs]
        _check_readable(reports)
        return reports

    def _commit(self, part: Sequence[SourceFile], runs: Runs, wish: LoadWish, files: Sequence[SourceFile]) -> Merged:
        merged, batch, tried = Merged(), new_batch_id(), False
        meeting = _meeting(wish)
        tombstones = Tombstones(self.job, self.data)
        merger = Merger(self.job, self.data, tombstones, self.spark, meeting)

        def decide() -> Change | None:
            nonlocal merged, tried
            if tried and self._is_there(batch):
                return None
            tried = True
            active = read_active(self.data, self.job.table.layout)
            if not self._takes_rows(wish, files, active.rows):
                raise UserError(f"{active.rows} rows came into the table while files were read", hint="load again")
            merged = merger.brought_up(runs, merged)
            if self.data.version >= (runs.naming.version_max or 0):
                raise TransientError("too many other commits came between: load again")
            check_staged(self.data.storage(), merged.files)
            tombstones.append(merged.tombstones, self.data.schema, merged.tombstones_removed)
            self.environment.reach("tombstones_written")
            removes = _everything(active) if meeting is Meeting.NONE else merger.removed(merged)
            numbers = self._numbers(merger, merged, removes, active, meeting)
            keys = [mark_key(self.job.name, file) for file in part]
            if files and not active.rows and wish.mode in (SaveMode.ERROR, SaveMode.IGNORE):
                keys.append(set_key(self.job.name, files))
            marks = dict.fromkeys(keys, self._generation() + 1 + (meeting in _OVERWRITES))
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

    def _numbers(
        self, merger: Merger, merged: Merged, removes: Sequence[RemovedFile], active: ActiveFiles, meeting: Meeting
    ) -> dict[str, int]:
        """What the commit counts; an overwrite touches every bucket that has files."""
        job, lookup = self.job.name, self.data.transaction
        found = merger.numbers(merged, removes)
        found[loads_key(job)] = (lookup(loads_key(job)) or 0) + 1
        if lookup(bulk_key(job)):
            # Rows came that a bulk load did not bring: it would not see them.
            found[bulk_key(job)] = 0
        if meeting is Meeting.NONE:
            for bucket in active.by_bucket:
                key = commits_key(job, bucket)
                found.setdefault(key, (lookup(key) or 0) + 1)
        if meeting in _OVERWRITES:
            found[overwritten_key(job)] = (lookup(overwritten_key(job)) or 0) + 1
        return found


def _meeting(wish: LoadWish) -> Meeting:
    if wish.mode is not SaveMode.OVERWRITE:
        return Meeting.NOT_OLDER
    return Meeting.PARTITIONS if wish.by_partition else Meeting.NONE


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
