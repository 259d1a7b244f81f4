"""What a Spark task tells the driver about its work: the staged files and the counts, one per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from penstock.errors import UserError
from penstock.flow.write.offset_ranges import Ranges
from penstock.logs.log import EpochMark

REPORT_VERSION = 1
Report = TypeVar("Report")
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


class StagedFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A Parquet file that is written and not yet committed. It belongs to one partition (RULES C4)."""

    topic: str
    partition: int
    path: str
    """Relative to the root of its table."""
    rows: int
    size_bytes: int
    partition_values: Mapping[str, str | None] = msgspec.field(default_factory=dict)
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
    new_fields: str = ""
    """What fields of records show that the schema lacks, as `flow.seen_types` writes it."""
    refused: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Records that turned out bad when their bytes were gone, with the reason: the batch is run again without them."""
    first_error: str = ""
    reasons: tuple[Reason, ...] = ()
    """Why records were quarantined; a bounded number of kinds."""
    replayed: Mapping[PartitionKey, Ranges] = field(default_factory=dict)
    """Of a replay: the offsets that became rows."""
    marks: Marks = field(default_factory=dict)


_TASK_REPORT = msgspec.msgpack.Decoder(tuple[Literal[1], TaskReport])


def encode_report(report: object) -> bytes:
    """A report of a task, of whichever kind; it lives until its batch is committed and is kept nowhere."""
    return msgspec.msgpack.encode((REPORT_VERSION, report))


def decode_report(data: bytes) -> TaskReport:
    return read_report(_TASK_REPORT, data)


def read_report(decoder: msgspec.msgpack.Decoder[tuple[Literal[1], Report]], data: bytes) -> Report:
    """The report in what a task sent; raises `UserError` if the task runs another version of Penstock."""
    try:
        return decoder.decode(data)[1]
    except msgspec.DecodeError as error:
        raise UserError(
            "a Spark task reported in a form that this process does not know",
            detail=str(error),
            hint="install the same version of Penstock on every executor",
        ) from error


def gathered_marks(several: Iterable[Marks]) -> dict[PartitionKey, tuple[EpochMark, ...]]:
    """The marks of several pieces or tasks by partition."""
    gathered: dict[PartitionKey, tuple[EpochMark, ...]] = {}
    for marks in several:
        for key, found in marks.items():
            gathered[key] = (*gathered.get(key, ()), *found)
    return gathered
