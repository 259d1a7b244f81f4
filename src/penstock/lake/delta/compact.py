"""Compaction: many small files of a partition value become few large ones, in a commit that changes no row.

The library's own compaction is never used: it drops app transactions, which are the positions (RULES C3). If another
writer removed a file of a group meanwhile, the group is dropped; if columns changed, all are. Vacuum deletes outputs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from penstock.flow.columns.partition_values import Values
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.names import compacted_name
from penstock.lake.compaction import (
    EVERYTHING,
    CompactionGroup,
    CompactionLimits,
    CompactionSource,
    Limit,
    Merged,
    Progress,
    gather,
    group,
    merge_files,
)
from penstock.lake.delta.files import ActiveFile, refuse_deletion_vectors
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog, SchemaMovedError
from penstock.lake.reports import CompactReport

VERSIONS_TO_LAND_MAX = 1000
"""After so many commits of other writers vacuum may delete an output that is not committed."""
FILES_PER_OUTPUT_MAX = 1000
"""In an export the footer of an output contains those of its inputs: this bounds its length."""
GROUPS_PER_COMMIT_MAX = 100
BYTES_PER_COMMIT_MAX = 1024**3
"""With both bounds a commit lands long before its version bound."""

FileGroup = CompactionGroup[ActiveFile]
"""Files of one partition value."""
MergedFiles = Merged[ActiveFile]
MergeFiles = Callable[[FileGroup, pa.Schema, int], MergedFiles]
"""Writes the rows of a group, in these columns, to staged files that may be committed up to this version."""
NumbersOfMerge = Callable[[Sequence[MergedFiles]], Mapping[str, int]]
"""Further app transactions of the commit that swaps these groups."""


def compact(
    table: DeltaLog, target_bytes: int, progress: Progress | None = None, effort: CompactionLimits = EVERYTHING
) -> CompactReport:
    """Merge files below `target_bytes`, partition value by partition value; rows, positions and totals stay."""
    table.refresh()
    refuse_deletion_vectors(table.handle, table.spec.path)
    groups = group_files(table.active_files(), target_bytes, effort)
    return compact_groups(table, groups, partial(merge_group, table), progress, effort=effort)


def group_files(
    files: Iterable[ActiveFile],
    target_bytes: int,
    effort: CompactionLimits = EVERYTHING,
    columns: int | None = None,
) -> tuple[FileGroup, ...]:
    """Small files of the same partition value, oldest first, together until they reach the target.

    With `columns` only the first so many partition columns have to agree.
    """
    one_file: Limit[ActiveFile] = Limit(lambda _: 1, FILES_PER_OUTPUT_MAX, firm=True)
    by_values: dict[Values, list[ActiveFile]] = {}
    for file in files:
        # A path with a scheme belongs to another table, of which this one is a shallow clone.
        if file.size_bytes < target_bytes and "://" not in file.path:
            by_values.setdefault(file.values[:columns], []).append(file)
    groups: list[FileGroup] = []
    for small in by_values.values():
        oldest_first = sorted(small, key=lambda file: (file.modified_at_ms, file.path))
        for alike in effort.worthwhile(oldest_first):
            groups += group(alike, target_bytes, one_file)
    return tuple(groups)


def compact_groups(
    table: DeltaLog,
    groups: Sequence[FileGroup],
    merge: MergeFiles,
    progress: Progress | None = None,
    numbers: NumbersOfMerge = lambda merged: {},
    effort: CompactionLimits = EVERYTHING,
) -> CompactReport:
    """Swap the groups for merged files, in commits of a bounded size."""
    taken = effort.within(groups)
    report, done = CompactReport(left=len(groups) - len(taken)), 0
    size: Limit[FileGroup] = Limit(lambda group: group.size_bytes, BYTES_PER_COMMIT_MAX)
    for portion in gather(taken, size, Limit(lambda _: 1, GROUPS_PER_COMMIT_MAX)):
        report += _compact_portion(table, portion, merge, numbers)
        done += len(portion)
        if progress is not None:
            progress(done, len(taken))
    return report


def _compact_portion(
    table: DeltaLog, groups: Sequence[FileGroup], merge: MergeFiles, numbers: NumbersOfMerge
) -> CompactReport:
    table.refresh()
    schema, version_max = table.schema, table.version + VERSIONS_TO_LAND_MAX
    merged = [merge(files, schema, version_max) for files in groups]
    table.environment.at_step("compact_staged")
    landed = commit_merged(table, merged, schema, version_max, numbers)
    if landed:
        table.environment.at_step("compact_committed")
    return CompactReport.of(len(groups), landed)


def merge_group(table: DeltaLog, files: FileGroup, schema: pa.Schema, version_max: int) -> MergedFiles:
    spec = table.spec
    options = WriteOptions(spec.path, schema, dict(spec.storage_options), spec.partition_by, open_writers_max=1)
    writer = StagedWriter(options, lambda: compacted_name(version_max, uuid.uuid4().hex), topic="", partition=0)
    sources = [
        CompactionSource(file.path, dict(zip(spec.partition_by, file.scalars, strict=True))) for file in files.files
    ]
    return Merged(files, merge_files(table.storage(), sources, schema, writer))


def commit_merged(
    table: DeltaLog,
    merged: Sequence[MergedFiles],
    written_with: pa.Schema,
    version_max: int,
    numbers: NumbersOfMerge = lambda merged: {},
) -> tuple[MergedFiles, ...]:
    """Swap groups for their outputs if their files are still active; returns those that landed."""
    alive: list[MergedFiles] = []
    landed: list[MergedFiles] = []

    def decide() -> Change | None:
        active = {file.path: file for file in table.active_files()}
        landed[:] = [swap for swap in merged if swap.outputs and all(file.path in active for file in swap.outputs)]
        same = {(file.path, file.size_bytes, file.vector) for file in active.values()}
        alive[:] = [
            swap for swap in merged if same >= {(file.path, file.size_bytes, file.vector) for file in swap.group.files}
        ]
        if not alive or table.version >= version_max:
            return None
        try:
            table.check_schema(written_with)
        except SchemaMovedError:
            alive.clear()
            return None
        inputs = [active[file.path] for swap in alive for file in swap.group.files]
        outputs = [file for swap in alive for file in swap.outputs]
        removes = [table.remove_action(file, data_change=False) for file in inputs]
        counts = Provenance(kind="compact", job=table.job, files_removed=len(inputs), files_added=len(outputs))
        adds = (table.add_action(file, data_change=False) for file in outputs)
        return Change([*removes, *adds], numbers(alive), counts.metadata)

    return tuple(alive if table.swap(decide, "compact_checked") else landed)
