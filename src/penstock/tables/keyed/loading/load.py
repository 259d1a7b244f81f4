"""`penstock load`: rows of Parquet files into a keyed table. Commits name the files that they hold.

An interrupted load continues with the files that no commit names; a repeated load has nothing to do. An overwrite is
one commit: readers see the rows before it or those after it. It removes rows of earlier loads from the table, so the
files that earlier commits name can be loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.environment import new_batch_id
from penstock.errors import PenstockError, TransientError, UserError
from penstock.flow.compile import collect_reports
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.job.spec import JobSpec
from penstock.lake.compaction import Limit, gather
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.entry import Action
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.keyed.files import chunk_store
from penstock.tables.keyed.layout import HIDDEN
from penstock.tables.keyed.loading.task import LoadTask, LoadTaskReport, SourceFile, source_files
from penstock.tables.keyed.merger import Merge
from penstock.tables.keyed.merging.chunks import fresh
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import SaveMode, StreamBatch, Written

BYTES_PER_COMMIT_MAX = 1024**3
FILES_PER_COMMIT_MAX = 1000


def mark_key(job: str, file: SourceFile) -> str:
    """Marks a file whose rows are in the table."""
    return f"{job}#load/{file.mark}"


def stream_key(job: str, query: str) -> str:
    """The number of the newest batch of a streaming query whose rows are in the table."""
    return f"{job}#stream/{fingerprint(query):016x}"


def loads_key(job: str) -> str:
    """The number of commits by loads."""
    return f"{job}#loads"


def overwritten_key(job: str) -> str:
    """The number of loads that replaced all rows whatever their sequence."""
    return f"{job}#overwritten"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The outcome of a load."""

    files: int = 0
    files_known: int = 0
    """Files that were loaded before."""
    rows: int = 0
    """Read from the files."""
    skipped: int = 0
    """Of these, rows that lost to a newer one, or were in the table already."""
    commits: int = 0

    def __add__(self, other: LoadReport) -> LoadReport:
        numbers = asdict(other)
        return LoadReport(**{name: number + numbers[name] for name, number in asdict(self).items()})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        loaded_before = f"; {self.files_known} were there already" if self.files_known else ""
        rows = f"{self.rows} rows, {self.skipped} of them skipped"
        yield f"{self.files} files loaded, {rows}, {self.commits} commits{loaded_before}"


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One load into a table."""

    job: JobSpec[KeyedSpec]
    data: DeltaLog
    spark: SparkSession
    mode: SaveMode

    def load(self, paths: Sequence[str]) -> LoadReport:
        """Load the files into the table: append and replace by key, or overwrite all rows."""
        self.data.refresh()
        files = source_files(paths, self.job.table.storage_options, self.data.schema)
        if self._overwrites:
            return self._of_files(tuple(files))
        marked = self._generation() + 1
        unknown = [file for file in files if self.data.transaction(mark_key(self.job.name, file)) != marked]
        size: Limit[SourceFile] = Limit(lambda file: file.size_bytes, BYTES_PER_COMMIT_MAX)
        report = LoadReport(files_known=len(files) - len(unknown))
        for part in gather(unknown, size, Limit(lambda _: 1, FILES_PER_COMMIT_MAX)):
            report += self._of_files(part)
        return report

    @property
    def _overwrites(self) -> bool:
        return self.mode is SaveMode.OVERWRITE

    def _generation(self) -> int:
        """The number of overwrites by all jobs. A mark is valid only if it is this number plus one."""
        ending = overwritten_key("")
        return sum(number for key, number in self.data.transactions().items() if key.endswith(ending))

    def write(self, frame: DataFrame, batch: StreamBatch | None) -> Written:
        """Write the rows of a data frame in one commit, unless the table has the batch already."""
        self.data.refresh()
        key = "" if batch is None else stream_key(self.job.name, batch.query)
        marks = {} if batch is None else {key: batch.number}

        def done() -> bool:
            number = self.data.transaction(key)
            return batch is not None and number is not None and number >= batch.number

        if done():
            return Written(0, 0, self.data.version)
        report = self._part(lambda: marks, lambda task: _taken(frame, task), done)
        return Written(report.rows, report.skipped, self.data.version)

    def _of_files(self, files: tuple[SourceFile, ...]) -> LoadReport:
        marks = [mark_key(self.job.name, file) for file in files]

        def read(task: LoadTask) -> list[LoadTaskReport]:
            return run_each(self.spark, task.take, tuple(enumerate(files)), LoadTaskReport, of="files")

        def numbers() -> dict[str, int]:
            return dict.fromkeys(marks, self._generation() + int(self._overwrites) + 1)

        return replace(self._part(numbers, read), files=len(files))

    def _part(
        self,
        marks: Callable[[], Mapping[str, int]],
        read: Callable[[LoadTask], list[LoadTaskReport]],
        done: Callable[[], bool] = lambda: False,
    ) -> LoadReport:
        """One commit, with these marks, unless another process is `done` with it; `read` is a job that writes runs.

        Its runs are deleted once it has succeeded or failed: no commit names them, and no other process reads them.
        Vacuum deletes those of a process that died.
        """
        self.data.refresh()
        version_max = self.data.version + VERSIONS_TO_LAND_MAX
        name = partial(fresh, compacted_name, version_max)
        columns = pa.schema([field for field in self.data.schema if field.name not in HIDDEN])
        reports = read(LoadTask.of(self.job, chunk_store(self.job.table, self.data), columns, name))
        runs = [run for report in reports for run in report.runs]
        try:
            _check_readable(reports)
            self.data.environment.at_step("runs_staged")
            tombstones = Tombstones(self.job, self.data)
            merge = Merge(self.job, self.data, tombstones, self.spark, runs, name, self.mode)
            self._commit(marks, merge, version_max, done)
        except PenstockError:
            self._delete(runs)
            raise
        self._delete(runs)
        rows = sum(report.rows for report in reports)
        skipped = rows - sum(run.rows for run in runs) + merge.skipped.total()
        return LoadReport(rows=rows, skipped=skipped, commits=1)

    def _delete(self, runs: Iterable[StagedFile]) -> None:
        storage = self.data.storage()
        with suppress(PenstockError):
            for run in runs:
                storage.delete(run.path)

    def _commit(
        self,
        marks: Callable[[], Mapping[str, int]],
        merge: Merge,
        version_max: int,
        done: Callable[[], bool],
    ) -> None:
        batch, tried = new_batch_id(), False

        def decide() -> Change | None:
            nonlocal tried
            # An attempt whose response was lost may have landed (RULES C2).
            if tried and any(commit.batch == batch for commit in self.data.commits()):
                return None
            if done():
                return None
            tried = True
            merge.merge_into_loaded()
            if self.data.version >= version_max:
                raise TransientError("too many concurrent commits: load again")
            check_staged(self.data.storage(), merge.files)
            merge.commit_tombstones()
            removes = merge.removes()
            overwrites = int(self._overwrites)
            numbers = {**merge.numbers(removes), **marks()}
            for key, added in ((loads_key(self.job.name), 1), (overwritten_key(self.job.name), overwrites)):
                if added:
                    numbers[key] = (self.data.transaction(key) or 0) + added
            actions: list[Action] = [self.data.remove_action(file) for file in removes]
            actions += [self.data.add_action(file) for file in merge.files]
            record = Provenance(
                kind="load",
                job=self.job.name,
                batch=batch,
                rows=sum(file.rows for file in merge.files),
                size_bytes=sum(file.written_bytes for file in merge.files),
                files_removed=len(removes),
                files_added=len(merge.files),
            )
            return Change(actions, numbers, record.metadata)

        self.data.swap(decide)
        self.data.environment.at_step("committed")


def _taken(frame: DataFrame, task: LoadTask) -> list[LoadTaskReport]:
    """Repartitioned, because Spark may change the number of other partitions, which shows that no report is missing."""
    with spark_errors(frame.sparkSession):
        # Of a frame without rows Spark may make no partition.
        if frame.isEmpty():
            return []
        tasks = frame.sparkSession.sparkContext.defaultParallelism
        reports = frame.repartition(tasks).mapInArrow(task.take_partition, from_arrow_schema(REPORT_SCHEMA))
        return collect_reports(reports, LoadTaskReport, tasks, "partitions")


def _check_readable(reports: Sequence[LoadTaskReport]) -> None:
    unreadable = [report.unreadable for report in reports if report.unreadable]
    if unreadable:
        hint = "declare new columns under `schema`, or set `on.new_column: ignore`; convert values of other types"
        raise UserError("rows do not fit the table", detail=unreadable[0], hint=hint)
    bad = sum(report.bad for report in reports)
    if bad:
        raise UserError(
            f"{bad} rows cannot be stored in the table",
            detail=next(report.first_fault for report in reports if report.first_fault),
            hint="a load has no quarantine: fix the files",
        )
