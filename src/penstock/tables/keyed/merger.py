"""The second Spark job of a batch: a task for each bucket that it touches; and again for those that others changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import ActiveFile, refuse_deletion_vectors
from penstock.lake.delta.table import Table
from penstock.lake.proposal import RemovedFile
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.keyed.files import ActiveFiles, Base, commits_key, files_number, meeting, read_active, small_alike
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.merge import merge_bucket
from penstock.tables.keyed.merging.plan import BucketPlan, BucketReport, Meeting, MergeFlow, Naming, OldFile
from penstock.tables.keyed.merging.runs import RunPart, parts_of, superseded
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones, small_tombstones

RunEntry = Mapping[str, Any]
TASKS_PER_CORE = 2
"""Of a merge: small buckets share a task, which costs more than they do."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a batch."""

    naming: Naming
    files: tuple[StagedFile, ...]

    def by_bucket(self) -> dict[int, list[tuple[RunEntry, RunPart]]]:
        found: dict[int, list[tuple[RunEntry, RunPart]]] = {}
        for file in self.files:
            for entry, part in parts_of(file):
                found.setdefault(int(entry["_bucket"]), []).append((entry, part))
        return found

    def superseded(self) -> dict[PartitionKey, int]:
        """By partition, the records that another of the same run replaced."""
        found: dict[PartitionKey, int] = {}
        for file in self.files:
            key = (file.topic, file.partition)
            found[key] = found.get(key, 0) + superseded(file)
        return found


@dataclass(frozen=True, slots=True)
class MergedBucket:
    base: Base
    report: BucketReport


@dataclass(frozen=True, slots=True)
class Merged:
    """A batch merged into the buckets that it touches, each as of some version; nobody sees it yet."""

    buckets: Mapping[int, MergedBucket] = field(default_factory=dict)
    schema: pa.Schema | None = None
    """Of the table when it was merged."""

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for each in self.buckets.values() for file in each.report.files)

    @property
    def tombstones(self) -> tuple[StagedFile, ...]:
        return tuple(file for each in self.buckets.values() for file in each.report.tombstones)

    @property
    def tombstones_removed(self) -> tuple[str, ...]:
        return tuple(path for each in self.buckets.values() for path in each.report.tombstones_removed)

    def skipped(self) -> dict[PartitionKey, int]:
        """By partition, the records that lost to a newer one."""
        found: dict[PartitionKey, int] = {}
        for each in self.buckets.values():
            for key, count in each.report.skipped:
                found[key] = found.get(key, 0) + count
        return found


class Merger:
    """Merges batches of one job into its table."""

    def __init__(
        self,
        job: JobSpec[KeyedSpec],
        data: Table,
        tombstones: Tombstones,
        spark: SparkSession,
        meeting: Meeting | None = None,
    ) -> None:
        self._job = job
        self._data = data
        self._tombstones = tombstones
        self._spark = spark
        self._seen: tuple[int, ActiveFiles] | None = None
        self._meeting = meeting or (Meeting.NONE if job.table.bulk else Meeting.NEWER)
        self._is_overwrite = meeting is Meeting.NONE

    def merge(self, runs: Runs) -> Merged:
        """Merge every bucket that the runs touch into the loaded version."""
        return self.brought_up(runs, Merged())

    def brought_up(self, runs: Runs, merged: Merged) -> Merged:
        """The same for the version that is loaded now: only the buckets that others changed are merged again."""
        schema = self._data.schema
        refuse_deletion_vectors(self._data.handle, self._data.spec.path)
        active = self._active()
        touched = runs.by_bucket()
        known = merged.buckets if merged.schema == schema else {}
        current = {bucket: each for bucket, each in known.items() if each.base == active.base(bucket)}
        stale = [bucket for bucket in sorted(touched) if bucket not in current]
        if not stale:
            return Merged(current, schema)
        reports = self._run(runs.naming, self._plans(stale, touched, active), schema)
        fresh = {each.bucket: MergedBucket(active.base(each.bucket), each) for each in reports}
        return Merged({**current, **fresh}, schema)

    def removed(self, merged: Merged) -> tuple[RemovedFile, ...]:
        """The files that the merged ones stand for, as of the loaded version."""
        active = self._active()
        return tuple(
            file for bucket, each in merged.buckets.items() for file in active.removed(bucket, each.report.removed)
        )

    def numbers(self, merged: Merged, removed: Sequence[RemovedFile]) -> dict[str, int]:
        """What a commit that takes these files out counts, as of the loaded version."""
        keys = [commits_key(self._job.name, bucket) for bucket in sorted(merged.buckets)]
        return {
            **{key: (self._data.transaction(key) or 0) + 1 for key in keys},
            **files_number(self._data, merged.files, removed),
            **self._tombstones.numbers(merged.tombstones, self._data.schema),
        }

    def _active(self) -> ActiveFiles:
        """The files of the loaded version, read once."""
        if self._seen is None or self._seen[0] != self._data.version:
            self._seen = (self._data.version, read_active(self._data, self._job.table.layout))
        return self._seen[1]

    def _plans(
        self, buckets: Iterable[int], touched: Mapping[int, list[tuple[RunEntry, RunPart]]], active: ActiveFiles
    ) -> tuple[BucketPlan, ...]:
        # Read after the table: a delete that it has was remembered before.
        dead = self._tombstones.files()
        plans = []
        for bucket in buckets:
            files = active.of(bucket)
            entries = [entry for entry, _ in touched[bucket]]
            runs = tuple(part for _, part in touched[bucket])
            plans.append(self._plan(BucketPlan(bucket, runs), entries, files, dead.get(bucket, ())))
        return tuple(plans)

    def _plan(
        self, plan: BucketPlan, entries: list[RunEntry], files: tuple[OldFile, ...], tombstones: tuple[ActiveFile, ...]
    ) -> BucketPlan:
        spec = self._job.table
        dead = tuple(each.path for each in tombstones)
        match self._meeting:
            case Meeting.NONE:
                # An overwrite begins a new table: what was deleted before does not count.
                return replace(plan, tombstones=() if self._is_overwrite else dead)
            case Meeting.PARTITIONS:
                return replace(plan, files=files)
            case Meeting.NEWER | Meeting.NOT_OLDER:
                met = meeting(files, entries, spec.layout.bounded)
                joined = small_alike(files, spec.chunk_rows, spec.layout.row_keys[0])
                dead_joined = small_tombstones(tombstones, spec.chunk_rows)
                return replace(plan, files=met, joined=joined, tombstones=dead, tombstones_joined=dead_joined)
            case _:
                assert_never(self._meeting)

    def _run(self, naming: Naming, plans: tuple[BucketPlan, ...], schema: pa.Schema) -> list[BucketReport]:
        spec = self._job.table
        options = dict(spec.storage_options)
        store = ChunkStore(spec.path, options, file_schema(schema), spec.layout, spec.chunk_rows)
        now = self._data.environment.now()
        flow = MergeFlow(store, naming, spec.tombstones_path, self._meeting, now, spec.tombstone_retention_seconds)
        merge = partial(merge_bucket, flow)
        with spark_errors(self._spark):
            tasks = min(len(plans), TASKS_PER_CORE * max(1, self._spark.sparkContext.defaultParallelism))
        return run_each(self._spark, merge, plans, BucketReport, tasks, of="buckets")
