"""The task reports of a batch, gathered by slice for the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.seen_types import NewFields, from_json, merged
from penstock.flow.write.manifest import Counts, Marks, PartitionKey, Reason, StagedFile, TaskReport, gathered_marks
from penstock.flow.write.reasons import merged_reasons
from penstock.logs.log import Batch, EpochMark, Slice


@dataclass(frozen=True, slots=True)
class Written:
    """What the Spark job of a batch left behind: staged files and counts, by partition."""

    counts: Mapping[PartitionKey, Counts]
    files: tuple[StagedFile, ...]
    quarantine_files: tuple[StagedFile, ...]
    new_fields: NewFields
    first_error: str
    reasons: tuple[Reason, ...]
    """Why records were quarantined, the most frequent first."""
    staged_at: float
    schema: pa.Schema
    marks: Marks = field(default_factory=dict)

    @property
    def total(self) -> Counts:
        return sum(self.counts.values(), Counts())

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def counts_of(self, piece: Slice) -> Counts:
        return self.counts.get(_key(piece), Counts())

    def mark_of(self, piece: Slice) -> EpochMark | None:
        return max(self.marks.get(_key(piece), ()), default=None)

    def files_of(self, piece: Slice) -> tuple[StagedFile, ...]:
        return _of(self.files, piece)

    def quarantine_files_of(self, piece: Slice) -> tuple[StagedFile, ...]:
        return _of(self.quarantine_files, piece)


def gather(batch: Batch, reports: Sequence[TaskReport], staged_at: float, schema: pa.Schema) -> Written:
    """Add up the tasks' reports; counts that do not add up are a bug that must not be committed (I3)."""
    counts: dict[PartitionKey, Counts] = {}
    for report in reports:
        for key, each in report.counts.items():
            counts[key] = counts.get(key, Counts()) + each
    for key, each in counts.items():
        if not each.conserved:
            raise InvariantError(f"counts of {key[0]}/{key[1]} in batch {batch.id} do not add up: {each}")
    return Written(
        counts=counts,
        files=tuple(file for report in reports for file in report.files),
        quarantine_files=tuple(file for report in reports for file in report.quarantine_files),
        new_fields=merged(from_json(report.new_fields) for report in reports),
        first_error=next((report.first_error for report in reports if report.first_error), ""),
        reasons=merged_reasons(each for report in reports for each in report.reasons),
        staged_at=staged_at,
        schema=schema,
        marks=gathered_marks(report.marks for report in reports),
    )


def _key(piece: Slice) -> PartitionKey:
    return piece.partition.topic, piece.partition.number


def _of(files: tuple[StagedFile, ...], piece: Slice) -> tuple[StagedFile, ...]:
    return tuple(file for file in files if (file.topic, file.partition) == _key(piece))
