"""What the tasks of every job share: their input, how they take records, and one report each."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.failpoints import Failpoint
from penstock.flow.rows import BadRows, bad_rows, rows_without, take
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.names import replayed_name, staged_name
from penstock.flow.write.report import Stopwatch, TaskReport, report_batch
from penstock.job.expressions import Expression
from penstock.job.spec import DecodeSpec, Policies
from penstock.logs.batches import as_one, mark_of
from penstock.logs.log import EpochMark

Batches = Iterator[pa.RecordBatch]
Stage = Callable[[Iterable[pa.RecordBatch]], Batches]
PartitionRows = tuple[PartitionKey, pa.RecordBatch]
"""Records of one partition in offset order."""
NoteMark = Callable[[PartitionKey, EpochMark], None]

PART_BYTES_MAX = 32 * 1024 * 1024
"""Of batches that are put together."""


@dataclass(frozen=True, slots=True)
class NamedSlice:
    """What the names of staged files show about a partition of the batch."""

    topic_id: str
    start: int
    end: int

    def writes(self, type_name: str) -> bool:
        """Whether the records of a type, or those of none, are written or quarantined; others are only counted."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFlow:
    """What the tasks of a batch need to know, whatever they write; it travels to the workers."""

    job: str
    batch_id: str
    decode: DecodeSpec
    columns: Mapping[str, Expression]
    on: Policies
    slices: Mapping[PartitionKey, NamedSlice]
    failpoint: Failpoint | None = None
    poison: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Offsets of records that break the job, found by `staging.isolate`: quarantined without being decoded."""
    replay_run: int | None = None
    """Set when the records come from quarantine: their files belong to no slice, and what is still bad stays there."""
    dry: bool = False
    """Do everything but write files: whether the records break the job."""

    def new_file_name(self, key: PartitionKey, start: int) -> str:
        """Of a staged file whose rows begin at an offset."""
        if self.replay_run is not None:
            return replayed_name(str(self.replay_run), uuid.uuid4().hex)
        piece = self.slices[key]
        return staged_name(piece.topic_id, key[1], start, piece.end, uuid.uuid4().hex)


class Task(Protocol):
    """The work of one Spark task."""

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None: ...

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None: ...

    def finish(self) -> TaskReport:
        """Complete every file and report all that was done."""

    def abandon(self) -> None:
        """Close every open file after an error; vacuum deletes what was written (RULES C2)."""


def run_task(task: Task, parts: Iterable[PartitionRows], failpoint: Failpoint | None) -> Batches:
    """Let the task take all parts; its report is the only row that it gives to Spark."""
    whole, reading, rest = Stopwatch(), Stopwatch(), iter(parts)
    try:
        with whole:
            while True:
                with reading:
                    rows = next(rest, None)
                if rows is None:
                    break
                task.take(*rows)
                if failpoint is not None:
                    failpoint.at_step("writing")
            report = task.finish()
        write = report.seconds.get("write", 0.0)
        decode = max(0.0, whole.seconds - reading.seconds - write)
        yield report_batch(replace(report, seconds={"read": reading.seconds, "decode": decode, "write": write}))
    except BaseException:
        task.abandon()
        raise


def log_parts(batches: Iterable[pa.RecordBatch], note_mark: NoteMark, rows_min: int = 0) -> Iterator[PartitionRows]:
    """The records that were read from the log; the marks between them are noted.

    Neighbouring batches of one partition are one part, until they have so many rows or enough bytes.
    """
    held: list[pa.RecordBatch] = []
    held_key: PartitionKey = ("", 0)
    rows = size_bytes = 0
    for batch in batches:
        if (marked := mark_of(batch)) is not None:
            note_mark(*marked)
        for key, part in by_partition(batch):
            if held and (key != held_key or size_bytes + part.nbytes > PART_BYTES_MAX):
                yield held_key, as_one(held)
                held, rows, size_bytes = [], 0, 0
            held_key = key
            held.append(part)
            rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
            if rows >= rows_min:
                yield held_key, as_one(held)
                held, rows, size_bytes = [], 0, 0
    if held:
        yield held_key, as_one(held)


def by_partition(batch: pa.RecordBatch) -> Iterator[PartitionRows]:
    """Split a batch by topic and partition; a batch that a task reads itself always has just one."""
    if not batch.num_rows:
        return
    topics, numbers = batch.column("topic"), batch.column("partition")
    span = pc.min_max(numbers)
    if span["min"] == span["max"] and pc.count_distinct(topics).as_py() == 1:
        yield (topics[0].as_py(), numbers[0].as_py()), batch
        return
    pairs = pa.table({"topic": topics, "partition": numbers}).group_by(["topic", "partition"]).aggregate([])
    for pair in pairs.to_pylist():
        selected = pc.and_(pc.equal(topics, pair["topic"]), pc.equal(numbers, pair["partition"]))
        yield (pair["topic"], pair["partition"]), batch.filter(selected)


def without_poison(batch: pa.RecordBatch, poison: Mapping[int, str]) -> tuple[pa.RecordBatch, BadRows]:
    """Take the poisonous records out of a batch of one partition."""
    offsets = batch.column("offset").to_pylist() if poison else []
    errors = {row: poison[offset] for row, offset in enumerate(offsets) if offset in poison}
    return take(batch, rows_without(batch.num_rows, errors)), bad_rows(batch, errors)
