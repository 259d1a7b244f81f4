"""Compaction of a keyed table: small chunks of a bucket become one, in the order of their keys, in a commit of our own.

It touches buckets like a batch does (RULES K1, K3): a batch that was merged meanwhile merges those again. Tombstones
whose time is over go with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import refuse_deletion_vectors
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.maintenance.compaction import Group, Limit, Merged, Progress, group, portions, swap
from penstock.lake.maintenance.reports import CompactReport
from penstock.lake.proposal import RemovedFile
from penstock.tables.keyed.files import by_key, commits_key, read_active
from penstock.tables.keyed.layout import BUCKET
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.plan import OldFile
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones

VERSIONS_TO_LAND_MAX = 1000
BYTES_PER_COMMIT_MAX = 1024**3
GROUPS_PER_COMMIT_MAX = 100


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A file with its bucket."""

    bucket: int
    file: OldFile

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes


def compact(
    job: JobSpec[KeyedSpec], table: Table, target_bytes: int | None = None, progress: Progress | None = None
) -> CompactReport:
    """Put small chunks together; rows, positions and totals stay."""
    table.refresh()
    refuse_deletion_vectors(table.handle, table.spec.path)
    groups = list(small_groups(job, table, target_bytes or job.flush.min_bytes_per_file))
    report, done = CompactReport(), 0
    for portion in portions(groups, BYTES_PER_COMMIT_MAX, Limit(lambda _: 1, GROUPS_PER_COMMIT_MAX)):
        report += _compact_groups(job, table, portion)
        done += len(portion)
        if progress is not None:
            progress(done, len(groups))
    Tombstones(job, table.environment).expire()
    return report


def small_groups(job: JobSpec[KeyedSpec], table: Table, target_bytes: int) -> Iterator[Group[BucketFile]]:
    """Small chunks of one bucket, neighbours in their keys, up to the rows of a chunk or the bytes of the target."""
    spec = job.table
    rows: Limit[BucketFile] = Limit(lambda each: each.file.rows, spec.chunk_rows, firm=True)
    for bucket, files in sorted(read_active(table, spec.layout).by_bucket.items()):
        small = [each for each in files if each.rows < spec.chunk_rows and each.size_bytes < target_bytes]
        small = by_key(small, spec.layout.row_keys[0])
        yield from group([BucketFile(bucket, each) for each in small], target_bytes, rows)


def _compact_groups(job: JobSpec[KeyedSpec], table: Table, groups: Sequence[Group[BucketFile]]) -> CompactReport:
    table.refresh()
    schema, version_max = table.schema, table.version + VERSIONS_TO_LAND_MAX
    landed = swap(
        groups,
        lambda each: _merged(job.table, each, schema, version_max),
        lambda merged: _commit(job, table, merged, schema, version_max),
        table.environment.reach,
    )
    return CompactReport.of(len(groups), landed)


def _merged(spec: KeyedSpec, files: Group[BucketFile], schema: pa.Schema, version_max: int) -> Merged[BucketFile]:
    """Write the rows of a group to new chunks."""
    options = dict(spec.storage_options)
    store = ChunkStore(spec.path, options, file_schema(schema), spec.layout, spec.chunk_rows)
    rows = store.sorted(pa.concat_tables([store.read(each.file.path) for each in files.files]).combine_chunks())

    def name() -> str:
        return compacted_name(version_max, uuid.uuid4().hex)

    return Merged(files, tuple(store.write(rows, files.files[0].bucket, name)))


def _commit(
    job: JobSpec[KeyedSpec],
    table: Table,
    merged: Sequence[Merged[BucketFile]],
    written_with: pa.Schema,
    version_max: int,
) -> tuple[Merged[BucketFile], ...]:
    """Swap groups for their chunks, as far as their files are still active; those that landed come back."""
    alive: list[Merged[BucketFile]] = []
    landed: list[Merged[BucketFile]] = []

    def decide() -> Change | None:
        active = {each.path for files in read_active(table, job.table.layout).by_bucket.values() for each in files}
        landed[:] = [each for each in merged if all(file.path in active for file in each.outputs)]
        alive[:] = [each for each in merged if all(file.file.path in active for file in each.group.files)]
        if not alive or table.version >= version_max or table.schema != written_with:
            return None
        refuse_deletion_vectors(table.handle, table.spec.path)
        return _change(table, alive)

    return tuple(alive if table.swap(decide, "compact_checked") else landed)


def _change(table: Table, merged: Sequence[Merged[BucketFile]]) -> Change:
    inputs = [file for each in merged for file in each.group.files]
    outputs = [file for each in merged for file in each.outputs]
    gone = [RemovedFile(each.file.path, each.file.size_bytes, {BUCKET: str(each.bucket)}) for each in inputs]
    touched = sorted({each.bucket for each in inputs})
    counters = [commits_key(table.job, bucket) for bucket in touched]
    return Change(
        actions=[
            *(table.remove_action(each, data_change=False) for each in gone),
            *(table.add_action(each, data_change=False) for each in outputs),
        ],
        transactions={key: (table.transaction(key) or 0) + 1 for key in counters},
        metadata=Provenance(
            kind="compact", job=table.job, files_removed=len(inputs), files_added=len(outputs)
        ).metadata,
    )
