"""What a Spark task tells the driver about its work: the staged files and the counts, as one JSON text per task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.flow.write.offset_ranges import Ranges
from penstock.logs.log import EpochMark

PartitionKey = tuple[str, int]
"""(topic, partition number): inside a batch a topic has one life, so the topic id is the driver's business."""
Marks = Mapping[PartitionKey, tuple[EpochMark, ...]]
"""Per partition the last records of the pieces that were read."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the records that were read: `read = written + quarantined + filtered + skipped` (I3)."""

    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.written + other.written,
            self.quarantined + other.quarantined,
            self.filtered + other.filtered,
            self.skipped + other.skipped,
        )

    @property
    def conserved(self) -> bool:
        return self.read == self.written + self.quarantined + self.filtered + self.skipped


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file that is written and not yet committed. It belongs to one partition (RULES C4)."""

    topic: str
    partition: int
    path: str
    """Relative to the root of its table."""
    rows: int
    size_bytes: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    """Delta statistics as JSON text."""
    last_offset: int | None = None
    """Of a routed job: the offset of its last record, which its final name tells."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of error: how often, and the first record that has it."""

    kind: str
    count: int
    example: str
    """`<topic>/<partition> offset <offset>: <error>`"""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.kind, self.count + other.count, self.example)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The result of one Spark task."""

    counts: Mapping[PartitionKey, Counts] = field(default_factory=dict)
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    new_fields: Mapping[str, Any] = field(default_factory=dict)
    """What fields of records show that the schema lacks, as `flow.seen_types` writes it."""
    refused: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Records that turned out bad when their bytes were gone, with the reason: the batch is run again without them."""
    first_error: str = ""
    reasons: tuple[Reason, ...] = ()
    """Why records were quarantined; a bounded number of kinds."""
    replayed: Mapping[PartitionKey, Ranges] = field(default_factory=dict)
    """Of a replay: the offsets that became rows."""
    marks: Marks = field(default_factory=dict)


def encode_report(report: TaskReport) -> str:
    return json.dumps(
        {
            "v": 1,
            "counts": [[topic, number, asdict(counts)] for (topic, number), counts in report.counts.items()],
            "files": [asdict(each) for each in report.files],
            "quarantine_files": [asdict(each) for each in report.quarantine_files],
            "new_fields": dict(report.new_fields),
            "refused": [[topic, number, list(bad.items())] for (topic, number), bad in report.refused.items()],
            "first_error": report.first_error,
            "reasons": [asdict(each) for each in report.reasons],
            "replayed": [[topic, number, ranges] for (topic, number), ranges in report.replayed.items()],
            "marks": encode_marks(report.marks),
        }
    )


def decode_report(text: str) -> TaskReport:
    body: dict[str, Any] = json.loads(text)
    if body["v"] != 1:
        raise ValueError(f"task report of version {body['v']}")
    return TaskReport(
        counts={(topic, number): Counts(**counts) for topic, number, counts in body["counts"]},
        files=tuple(StagedFile(**each) for each in body["files"]),
        quarantine_files=tuple(StagedFile(**each) for each in body["quarantine_files"]),
        new_fields=body["new_fields"],
        refused={(topic, number): dict(bad) for topic, number, bad in body["refused"]},
        first_error=body["first_error"],
        reasons=tuple(Reason(**each) for each in body["reasons"]),
        replayed={
            (topic, number): tuple((start, end) for start, end in ranges) for topic, number, ranges in body["replayed"]
        },
        marks=decode_marks(body["marks"]),
    )


def encode_marks(marks: Marks) -> list[list[Any]]:
    return [[*key, each.end, each.epoch] for key, found in marks.items() for each in found]


def decode_marks(body: Iterable[list[Any]]) -> dict[PartitionKey, tuple[EpochMark, ...]]:
    return gathered_marks({(topic, number): (EpochMark(end, epoch),)} for topic, number, end, epoch in body)


def gathered_marks(several: Iterable[Marks]) -> dict[PartitionKey, tuple[EpochMark, ...]]:
    """The marks of several pieces or tasks by partition."""
    gathered: dict[PartitionKey, tuple[EpochMark, ...]] = {}
    for marks in several:
        for key, found in marks.items():
            gathered[key] = (*gathered.get(key, ()), *found)
    return gathered
