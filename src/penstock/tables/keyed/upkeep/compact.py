"""Compaction of a keyed table: small chunks of a bucket become one, in the order of their keys, in a commit of our own.

It touches buckets like a batch does (RULES K1, K3): a batch that was merged meanwhile merges those again. Tombstones
whose time is over go with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import refuse_deletion_vectors
from penstock.lake.delta.compact import compact_groups
from penstock.lake.delta.table import Table
from penstock.lake.maintenance.compaction import EVERYTHING, Effort, Group, Limit, Merged, Progress, group
from penstock.lake.maintenance.reports import CompactReport
from penstock.tables.keyed.files import by_key, commits_key, files_number, read_active
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.plan import OldFile
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import CompactWish


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A file with its bucket."""

    bucket: int
    file: OldFile

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes


def compact(
    job: JobSpec[KeyedSpec], table: Table, wish: CompactWish, progress: Progress | None = None
) -> CompactReport:
    """Put small chunks together; rows, positions and totals stay."""
    table.refresh()
    refuse_deletion_vectors(table.handle, table.spec.path)
    groups = list(small_groups(job, table, wish.target_bytes or job.flush.min_bytes_per_file, wish.effort))
    merge, numbers = partial(_merged, job.table), partial(_counters, table)
    report = compact_groups(table, groups, merge, progress, numbers, wish.effort)
    Tombstones(job, table).expire()
    return report


def small_groups(
    job: JobSpec[KeyedSpec], table: Table, target_bytes: int, effort: Effort = EVERYTHING
) -> Iterator[Group[BucketFile]]:
    """Small chunks of one bucket, neighbours in their keys, up to the rows of a chunk or the bytes of the target."""
    spec = job.table
    rows: Limit[BucketFile] = Limit(lambda each: each.file.rows, spec.chunk_rows, firm=True)
    for bucket, files in sorted(read_active(table, spec.layout).by_bucket.items()):
        small = [each for each in files if each.rows < spec.chunk_rows and each.size_bytes < target_bytes]
        in_order = [BucketFile(bucket, file) for file in by_key(small, spec.layout.row_keys[0])]
        for alike in effort.worthwhile(in_order):
            yield from group(alike, target_bytes, rows)


def _merged(spec: KeyedSpec, files: Group[BucketFile], schema: pa.Schema, version_max: int) -> Merged[BucketFile]:
    """Write the rows of a group to new chunks."""
    options = dict(spec.storage_options)
    store = ChunkStore(spec.path, options, file_schema(schema), spec.layout, spec.chunk_rows)
    rows = store.sorted(pa.concat_tables([store.read(each.file.path) for each in files.files]).combine_chunks())

    def name() -> str:
        return compacted_name(version_max, uuid.uuid4().hex)

    return Merged(files, tuple(store.write(rows, files.files[0].bucket, name)))


def _counters(table: Table, merged: Sequence[Merged[BucketFile]]) -> dict[str, int]:
    """Those of the buckets that a commit touches, and that of the files."""
    before = [file for each in merged for file in each.group.files]
    keys = [commits_key(table.job, bucket) for bucket in sorted({file.bucket for file in before})]
    counters = {key: (table.transaction(key) or 0) + 1 for key in keys}
    return counters | files_number(table, [file for each in merged for file in each.outputs], before)
