"""`penstock load`: rows of Parquet files into a keyed table. Commits name the files that they hold.

An interrupted load continues with the files that no commit names; a repeated load has nothing to do. An overwrite is
one commit: readers see the rows before it or those after it. It removes rows of earlier loads from the table, so the
files that earlier commits name can be loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import new_batch_id
from penstock.errors import PenstockError, TransientError, UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.compaction import Limit, gather
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.entry import Action
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.staging.dealing import run_each
from penstock.tables.keyed.files import chunk_store
from penstock.tables.keyed.layout import HIDDEN
from penstock.tables.keyed.loading.task import LoadTask, LoadTaskReport, SourceFile, source_files
from penstock.tables.keyed.merger import Merge
from penstock.tables.keyed.merging.chunks import NewName, fresh
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import SaveMode

BYTES_PER_COMMIT_MAX = 1024**3
FILES_PER_COMMIT_MAX = 1000


def mark_key(job: str, file: SourceFile) -> str:
    """Marks a file whose rows are in the table."""
    return f"{job}#load/{file.mark}"


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
            return self._part(tuple(files))
        marked = self._generation() + 1
        unknown = [file for file in files if self.data.transaction(mark_key(self.job.name, file)) != marked]
        size: Limit[SourceFile] = Limit(lambda file: file.size_bytes, BYTES_PER_COMMIT_MAX)
        report = LoadReport(files_known=len(files) - len(unknown))
        for part in gather(unknown, size, Limit(lambda _: 1, FILES_PER_COMMIT_MAX)):
            report += self._part(part)
        return report

    @property
    def _overwrites(self) -> bool:
        return self.mode is SaveMode.OVERWRITE

    def _generation(self) -> int:
        """The number of overwrites by all jobs. A mark is valid only if it is this number plus one."""
        ending = overwritten_key("")
        return sum(number for key, number in self.data.transactions().items() if key.endswith(ending))

    def _part(self, files: tuple[SourceFile, ...]) -> LoadReport:
        """One commit.

        Its runs are deleted once it has succeeded or failed: no commit names them, and no other process reads them.
        Vacuum deletes those of a process that died.
        """
        self.data.refresh()
        version_max = self.data.version + VERSIONS_TO_LAND_MAX
        name = partial(fresh, compacted_name, version_max)
        reports = self._read(files, name)
        runs = [run for report in reports for run in report.runs]
        try:
            _check_readable(reports)
            self.data.environment.at_step("runs_staged")
            tombstones = Tombstones(self.job, self.data)
            merge = Merge(self.job, self.data, tombstones, self.spark, runs, name, self.mode)
            self._commit(files, merge, version_max)
        except PenstockError:
            self._delete(runs)
            raise
        self._delete(runs)
        rows = sum(report.rows for report in reports)
        skipped = rows - sum(run.rows for run in runs) + merge.skipped.total()
        return LoadReport(len(files), 0, rows, skipped, commits=1)

    def _delete(self, runs: Iterable[StagedFile]) -> None:
        storage = self.data.storage()
        with suppress(PenstockError):
            for run in runs:
                storage.delete(run.path)

    def _read(self, files: tuple[SourceFile, ...], name: NewName) -> list[LoadTaskReport]:
        """One Spark job, which writes the rows as runs."""
        columns = pa.schema([field for field in self.data.schema if field.name not in HIDDEN])
        task = LoadTask.of(self.job, chunk_store(self.job.table, self.data), columns, name)
        return run_each(self.spark, task.take, tuple(enumerate(files)), LoadTaskReport, of="files")

    def _commit(self, files: tuple[SourceFile, ...], merge: Merge, version_max: int) -> None:
        batch, tried = new_batch_id(), False

        def decide() -> Change | None:
            nonlocal tried
            # An attempt whose response was lost may have landed (RULES C2).
            if tried and any(commit.batch == batch for commit in self.data.commits()):
                return None
            tried = True
            merge.merge_into_loaded()
            if self.data.version >= version_max:
                raise TransientError("too many concurrent commits: load again")
            check_staged(self.data.storage(), merge.files)
            merge.commit_tombstones()
            removes = merge.removes()
            overwrites = int(self._overwrites)
            marks = [mark_key(self.job.name, file) for file in files]
            numbers = merge.numbers(removes) | dict.fromkeys(marks, self._generation() + overwrites + 1)
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
