"""Compaction: many small files of a partition value become few large ones, in a commit that changes no row.

Never the library's own: it drops app transactions, which are the positions (RULES C3). The commit removes files, so it
is a compare-and-swap on a version in which every one of them was seen active. Whoever else commits in between costs
nothing but a reload; a group of which another writer removed a file is given up, and its output is vacuum's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import RemoveAction

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.columns.partition_values import Values
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.lake.delta.active_files import ActiveFile, active_files, refuse_deletion_vectors
from penstock.lake.delta.table import Change, Table
from penstock.lake.storage import Storage

VERSIONS_TO_LAND_MAX = 1000
"""How many commits of others an output outlives uncommitted; after them vacuum may take it."""
GROUPS_PER_COMMIT_MAX = 100
BYTES_PER_COMMIT_MAX = 1024**3
"""A commit passes it by one group at most."""
BATCH_BYTES_MAX = 16 * 1024**2
BATCH_ROWS_MAX = 65_536

Progress = Callable[[int, int], None]
"""Hears how many groups are done, of how many."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition value that become one."""

    files: tuple[ActiveFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


@dataclass(frozen=True, slots=True)
class Merged:
    """A group and the files that hold its rows, staged and not yet committed."""

    group: Group
    outputs: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did; `dropped` groups lost a file to another writer, or the race to commit."""

    files_removed: int = 0
    files_added: int = 0
    rows: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    commits: int = 0
    dropped: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else a person should know."""
        return ()

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def compact(table: Table, target_bytes: int, progress: Progress | None = None) -> CompactReport:
    """Merge files below `target_bytes`, partition value by partition value; rows, positions and totals stay."""
    table.refresh()
    refuse_deletion_vectors(table.handle, table.spec.path)
    groups = group_files(active_files(table.handle), target_bytes)
    report, done = CompactReport(), 0
    for portion in _portions(groups):
        report += _compact_groups(table, portion)
        done += len(portion)
        if progress is not None:
            progress(done, len(groups))
    return report


def group_files(files: Iterable[ActiveFile], target_bytes: int) -> tuple[Group, ...]:
    """Small files of the same partition value, oldest first, together until they reach the target."""
    by_values: dict[Values, list[ActiveFile]] = {}
    for file in files:
        # A path with a scheme lies in another table, of which this one is a shallow clone.
        if file.size_bytes < target_bytes and "://" not in file.path:
            by_values.setdefault(file.values, []).append(file)
    groups = []
    for small in by_values.values():
        pending: list[ActiveFile] = []
        pending_bytes = 0
        for file in sorted(small, key=lambda each: (each.modified_at_ms, each.path)):
            pending.append(file)
            pending_bytes += file.size_bytes
            if pending_bytes >= target_bytes:
                groups.append(Group(tuple(pending)))
                pending, pending_bytes = [], 0
        groups.append(Group(tuple(pending)))
    return tuple(each for each in groups if len(each.files) > 1)


def _portions(groups: Iterable[Group]) -> Iterator[tuple[Group, ...]]:
    """The groups that share a commit: few enough that it lands long before its version bound."""
    pending: list[Group] = []
    pending_bytes = 0
    for group in groups:
        pending.append(group)
        pending_bytes += group.size_bytes
        if len(pending) == GROUPS_PER_COMMIT_MAX or pending_bytes >= BYTES_PER_COMMIT_MAX:
            yield tuple(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield tuple(pending)


def _compact_groups(table: Table, groups: tuple[Group, ...]) -> CompactReport:
    table.refresh()
    schema, version_max = table.schema, table.version + VERSIONS_TO_LAND_MAX
    merged = tuple(merge_group(table, each, schema, version_max) for each in groups)
    table.environment.reach("compact_staged")
    landed = commit_merged(table, merged, schema, version_max)
    outputs = [file for each in landed for file in each.outputs]
    return CompactReport(
        files_removed=sum(len(each.group.files) for each in landed),
        files_added=len(outputs),
        rows=sum(file.rows for file in outputs),
        size_bytes_before=sum(each.group.size_bytes for each in landed),
        size_bytes_after=sum(file.size_bytes for file in outputs),
        commits=1 if landed else 0,
        dropped=len(merged) - len(landed),
    )


def merge_group(table: Table, group: Group, schema: pa.Schema, version_max: int) -> Merged:
    """Write the rows of a group to new staged files, a batch of rows at a time."""
    options = WriteOptions(
        table_url=table.spec.path,
        schema=schema,
        storage_options=dict(table.spec.storage_options),
        partition_by=table.spec.partition_by,
        open_writers_max=1,
    )
    storage = table.storage()
    writer = StagedWriter(options, lambda: compacted_name(version_max, uuid.uuid4().hex), topic="", partition=0)
    read = 0
    try:
        for file in group.files:
            partition = dict(zip(table.spec.partition_by, file.scalars, strict=True))
            for rows in _rows(storage, file.path, partition, schema):
                read += rows.num_rows
                writer.write(rows)
        outputs = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    if read != sum(each.rows for each in outputs):
        raise InvariantError(f"a compaction of {table.spec.path} read {read} rows and wrote another number")
    return Merged(group, outputs)


def _rows(
    storage: Storage, path: str, partition: Mapping[str, pa.Scalar], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the table's columns; those that it lacks, because they came later, are null."""
    known = {folded(name) for name in schema.names if name not in partition}
    with storage.open_reader(path) as source:
        try:
            # Without a pre-buffer only the column chunks of one row group are in memory.
            parquet = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us")
            for number in range(parquet.num_row_groups):
                count = _batch_rows(parquet.metadata.row_group(number))
                for batch in parquet.iter_batches(count, row_groups=[number]):
                    columns = {
                        name: column
                        for name, column in zip(batch.schema.names, batch.columns, strict=True)
                        # Another writer may keep in its files what the log says: no reader sees it there.
                        if folded(name) in known
                    }
                    columns |= {name: pa.repeat(value, batch.num_rows) for name, value in partition.items()}
                    yield fit_columns(pa.RecordBatch.from_pydict(columns), schema)
        except pa.ArrowException as error:
            raise InvariantError(f"cannot read {path} of {storage.url}", detail=str(error)) from error


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    row_bytes = row_group.total_byte_size / max(1, row_group.num_rows)
    return max(1, min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / max(1.0, row_bytes))))


def commit_merged(
    table: Table, merged: tuple[Merged, ...], written_with: pa.Schema, version_max: int
) -> tuple[Merged, ...]:
    """Swap groups for their outputs, as far as their files are still active; those that landed come back."""
    alive: list[Merged] = []
    landed: list[Merged] = []

    def decide() -> Change | None:
        active = {each.path: each for each in active_files(table.handle)}
        landed[:] = [each for each in merged if each.outputs and all(file.path in active for file in each.outputs)]
        alive[:] = [each for each in merged if all(active.get(file.path) == file for file in each.group.files)]
        if not alive or table.version >= version_max:
            return None
        refuse_deletion_vectors(table.handle, table.spec.path)
        table.check_schema(written_with)
        return _change(table, alive)

    if not table.swap(decide, "compact_checked"):
        return tuple(landed)
    table.environment.reach("compact_committed")
    return tuple(alive)


def _change(table: Table, merged: Iterable[Merged]) -> Change:
    now_ms = int(table.environment.now() * 1000)
    inputs = [file for each in merged for file in each.group.files]
    outputs = [file for each in merged for file in each.outputs]
    removes = [
        RemoveAction(
            file.path,
            False,
            now_ms,
            file.size_bytes,
            dict(zip(table.spec.partition_by, file.values, strict=True)),
        )
        for file in inputs
    ]
    return Change(
        actions=[*removes, *(table.add_action(file, data_change=False) for file in outputs)],
        transactions={},
        metadata={
            "penstock": {
                "v": 1,
                "kind": "compact",
                "job": table.job,
                "files_removed": len(inputs),
                "files_added": len(outputs),
            }
        },
    )
