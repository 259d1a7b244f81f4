"""Compaction and vacuum of a keyed table.

Compaction puts small chunks of a bucket together, in the order of their keys, in a commit of our own. It touches
buckets like a batch does (RULES K1, K3): a batch that was merged meanwhile merges those again. Tombstones whose time is
over go with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from penstock.flow.write.names import compacted_name
from penstock.job.spec import JobSpec
from penstock.lake.compaction import Effort, Limit, Merged, Progress, group
from penstock.lake.delta.compact import FileGroup, compact_groups
from penstock.lake.delta.files import ActiveFile, refuse_deletion_vectors
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import NameRules, by_version, data_rules
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.tables.keyed.files import chunk_store, files_by_bucket, touching_numbers
from penstock.tables.keyed.merging.chunks import fresh
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones, find_tombstones
from penstock.tables.kind import CompactRequest
from penstock.tables.single.vacuum import vacuum


def compact_keyed(
    job: JobSpec[KeyedSpec], table: Table, request: CompactRequest, progress: Progress | None = None
) -> CompactReport:
    """Put small chunks together; rows, positions and totals stay."""
    table.refresh()
    refuse_deletion_vectors(table.handle, table.spec.path)
    groups = list(_groups(job.table, table, request.target_bytes or job.flush.min_bytes_per_file, request.effort))

    def merge(files: FileGroup, schema: pa.Schema, version_max: int) -> Merged[ActiveFile]:
        store = chunk_store(job.table, table)
        rows = store.sorted([store.read(file.path) for file in files.files])
        name = partial(fresh, compacted_name, version_max)
        return Merged(files, tuple(store.write(rows, int(files.files[0].values[0] or 0), name)))

    def numbers(merged: Sequence[Merged[ActiveFile]]) -> dict[str, int]:
        before = [file for done in merged for file in done.group.files]
        after = [file for done in merged for file in done.outputs]
        return touching_numbers(table, files_by_bucket(before), after, before)

    report = compact_groups(table, groups, merge, progress, numbers, request.effort)
    Tombstones(job, table).expire()
    return report


def _groups(spec: KeyedSpec, table: Table, target_bytes: int, effort: Effort) -> Iterator[FileGroup]:
    """Small chunks of one bucket, neighbours in their keys, up to the rows of a chunk or the bytes of the target."""
    rows: Limit[ActiveFile] = Limit(lambda file: file.rows or 0, spec.chunk_rows, firm=True)
    column = spec.layout.row_keys[0]
    for files in files_by_bucket(table.active_files((column,))).values():
        small = [file for file in files if (file.rows or 0) < spec.chunk_rows and file.size_bytes < target_bytes]
        for alike in effort.worthwhile(_by_key(small, column)):
            yield from group(alike, target_bytes, rows)


def _by_key(files: list[ActiveFile], column: str) -> list[ActiveFile]:
    """In the order of the least value of a column; those whose statistics do not give it come last."""
    bounded = [(span[0], file.path, file) for file in files if (span := file.spans[column]) is not None]
    return [*(file for *_, file in sorted(bounded)), *(file for file in files if file.spans[column] is None)]


def vacuum_keyed(job: JobSpec[KeyedSpec], table: Table, dry_run: bool) -> VacuumReport:
    """Delete dead files: also runs whose slices are behind the position, and tombstones that no commit can name."""
    tombstones = find_tombstones(job.table, job.name, table.environment)

    def rules(beside: Table) -> NameRules:
        """They are committed before the batch that they belong to, so its positions decide about them too."""
        of_data = data_rules(table)
        return NameRules(of_data.of_slice, by_version(beside), of_data.of_replay)

    beside = () if tombstones is None else ((tombstones, rules),)
    return vacuum(table, dry_run=dry_run, beside=beside)
