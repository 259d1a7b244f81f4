"""The second Spark job of a batch merges each bucket that it touches, and again those that other commits changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import InvariantError
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.job.spec import JobSpec
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vectors import vectors_file
from penstock.lake.proposal import RemovedFile
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.keyed.files import (
    chunk_store,
    commits_by_bucket,
    files_by_bucket,
    touching_numbers,
)
from penstock.tables.keyed.layout import BUCKET
from penstock.tables.keyed.merging.chunks import NewName
from penstock.tables.keyed.merging.merge import BucketPlan, BucketReport, Mark, MergeFlow, merge_bucket
from penstock.tables.keyed.merging.runs import parts_by_bucket
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import SaveMode

TASKS_PER_CORE = 2
"""Of a merge: small buckets share a task, because its overhead exceeds their work."""

Base = tuple[frozenset[ActiveFile], int]
"""The files of a bucket with their vectors, and the number of commits that touched it. Equal bases have the same rows
and tombstones; files alone do not show that, because a commit that deletes absent keys changes no file."""
REWRITE_SHARE = 0.1
"""A file is rewritten at once if a batch changes more than this share of its rows; below, they are marked."""


class Merge:
    """The runs of a batch or load, merged into the buckets that they touch, each as of some version; not committed."""

    def __init__(
        self,
        job: JobSpec[KeyedSpec],
        data: DeltaLog,
        tombstones: Tombstones,
        spark: SparkSession,
        runs: Sequence[StagedFile],
        name: NewName,
        load: SaveMode | None = None,
    ) -> None:
        self._job = job
        self._data = data
        self._spark = spark
        self._name = name
        self._load = load
        self._tombstones = tombstones
        self._parts = parts_by_bucket(runs)
        self._merged: dict[int, tuple[Base, BucketReport]] = {}
        self._schema: pa.Schema | None = None

    @property
    def reports(self) -> list[BucketReport]:
        return [report for _, report in self._merged.values()]

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for report in self.reports for file in report.files)

    @property
    def tombstones(self) -> list[StagedFile]:
        return [file for report in self.reports for file in report.tombstones]

    @property
    def skipped(self) -> Counter[PartitionKey]:
        """The records that lost to a newer one of another run or of the table, by partition."""
        skipped: Counter[PartitionKey] = Counter()
        for report in self.reports:
            skipped.update(dict(report.skipped))
        return skipped

    def merge_into_loaded(self) -> None:
        """Merge into the loaded version; only buckets that other commits have changed are merged again."""
        schema, commits = self._data.schema, commits_by_bucket(self._data)
        files = files_by_bucket(self._active())
        bases = {bucket: (frozenset(files.get(bucket, ())), commits.get(bucket, 0)) for bucket in self._parts}
        if schema != self._schema:
            self._merged, self._schema = {}, schema
        stale = [bucket for bucket in bases if bucket not in self._merged or self._merged[bucket][0] != bases[bucket]]
        if stale:
            # Read after the table: tombstones are committed before the deletes.
            dead = self._tombstones.files()
            plans = tuple(self._plan(bucket, files.get(bucket, ()), dead.get(bucket, ())) for bucket in stale)
            reports = self._with_vectors(self._run(plans))
            self._merged |= {report.bucket: (bases[report.bucket], report) for report in reports}

    def removes(self) -> tuple[RemovedFile, ...]:
        """The files that the merged ones replace; they must be active in the loaded version (RULES K3)."""
        active = {file.path: file for file in self._active()}
        overwrites = self._load is SaveMode.OVERWRITE
        replaced = (
            path for report in self.reports for path in (*report.removed, *(mark.path for mark in report.marks))
        )
        paths = [*active] if overwrites else [*replaced]
        lost = [path for path in paths if path not in active]
        if lost:
            raise InvariantError(f"a merge replaces {lost[0]}, which is not in the table any more")
        files = (active[path] for path in paths)
        return tuple(RemovedFile(file.path, file.size_bytes, {BUCKET: file.values[0]}, file.vector) for file in files)

    def numbers(self, removes: Sequence[RemovedFile]) -> dict[str, int]:
        """The numbers of a commit on the loaded version that removes these files."""
        replaced = {int(file.partition_values[BUCKET] or 0) for file in removes}
        numbers = touching_numbers(self._data, replaced | self._merged.keys(), self.files, removes)
        return numbers | self._tombstones.numbers(self.tombstones)

    def commit_tombstones(self) -> None:
        """Commit tombstones before their deletes (RULES K2)."""
        self._tombstones.append(self.tombstones)
        self._data.environment.at_step("tombstones_written")

    def _active(self) -> tuple[ActiveFile, ...]:
        return self._data.active_files(self._job.table.layout.keys)

    def _plan(self, bucket: int, files: tuple[ActiveFile, ...], tombstones: tuple[ActiveFile, ...]) -> BucketPlan:
        # An overwrite restores deleted keys: it ignores tombstones.
        if self._load is SaveMode.OVERWRITE:
            return BucketPlan(bucket, self._parts[bucket])
        return BucketPlan(bucket, self._parts[bucket], files, tuple(file.path for file in tombstones))

    def _with_vectors(self, reports: list[BucketReport]) -> list[BucketReport]:
        """The reports with the marked files as they are to be committed; their vectors are written to one file."""
        marks = [mark for report in reports for mark in report.marks]
        if not marks:
            return reports
        data, vectors = vectors_file(self._name(), [(mark.bitmap, mark.rows) for mark in marks])
        sink = self._data.storage().open_writer(vectors[0].path)
        try:
            sink.write(data)
            sink.close()
        except BaseException:
            sink.abandon()
            raise
        of_path = dict(zip((mark.path for mark in marks), vectors, strict=True))
        active, logged = {file.path: file for file in self._active()}, self._data.logged_files()

        def marked(mark: Mark) -> StagedFile:
            file = active[mark.path]
            values, stats = {BUCKET: file.values[0]}, logged[mark.path].stats
            return StagedFile("", 0, file.path, 0, file.size_bytes, values, stats, vector=of_path[file.path])

        return [
            msgspec.structs.replace(report, files=(*report.files, *map(marked, report.marks))) for report in reports
        ]

    def _run(self, plans: tuple[BucketPlan, ...]) -> list[BucketReport]:
        spec, now = self._job.table, self._data.environment.now()
        store, ties_replace = chunk_store(spec, self._data), self._load is SaveMode.APPEND
        share = REWRITE_SHARE if self._data.marks_rows else 0.0
        flow = MergeFlow(store, self._name, spec.tombstones_place.path, ties_replace, share, now)
        with spark_errors(self._spark):
            tasks = min(len(plans), TASKS_PER_CORE * max(1, self._spark.sparkContext.defaultParallelism))
        return run_each(self._spark, partial(merge_bucket, flow), plans, BucketReport, tasks, of="buckets")
