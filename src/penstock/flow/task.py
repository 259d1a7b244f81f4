"""What one Spark task does with its records: decode, compute columns, write staged files, count.

Without `sql:` the whole way is one `mapInArrow` (`fused_stage`). With it, Spark's projection stands between
`decode_stage` and `write_stage`; hidden columns carry what the last stage needs to write and count (RULES P4).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from penstock.failpoints import Failpoint
from penstock.flow.columns.computed import compute
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.columns.partition_values import partition_faults
from penstock.flow.columns.seen_types import NewFields, add_fields, to_json
from penstock.flow.decode import Decoder, decoder_for
from penstock.flow.rows import BadRows, DecodedRows, bad_rows, in_parts, rows_without, take
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import (
    Counts,
    Marks,
    PartitionKey,
    Reason,
    StagedFile,
    TaskReport,
    encode_report,
    gathered_marks,
)
from penstock.flow.write.names import owner_tag, replayed_name, staged_name
from penstock.flow.write.offset_ranges import ranges_of
from penstock.flow.write.quarantine import quarantine_rows
from penstock.flow.write.reasons import merged_reasons, reasons_of
from penstock.job.expressions import Expression
from penstock.job.spec import DecodeSpec, Policies
from penstock.logs.batches import mark_of
from penstock.logs.log import EpochMark

Batches = Iterator[pa.RecordBatch]
Stage = Callable[[Iterable[pa.RecordBatch]], Batches]

REPORT_SCHEMA = pa.schema([("report", pa.binary())])


@dataclass(frozen=True, slots=True)
class NamedSlice:
    """What the names of staged files tell about a partition of the batch."""

    topic_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Everything that a task needs to know; it travels to the workers."""

    job: str
    batch_id: str
    decode: DecodeSpec
    decoded: pa.Schema
    columns: Mapping[str, Expression]
    on: Policies
    table: WriteOptions
    quarantine: WriteOptions
    slices: Mapping[PartitionKey, NamedSlice]
    stated: pa.Schema | None = None
    """The fields that the job file states; None: all that are decoded."""
    failpoint: Failpoint | None = None
    poison: Mapping[PartitionKey, Mapping[int, str]] = field(default_factory=dict)
    """Offsets of records that break the job itself, found by `engine.isolate`: they go to quarantine unseen."""
    replay_run: int | None = None
    """Set when the records come from quarantine: their files belong to no slice, and what is still bad stays there."""


@dataclass(slots=True)
class _Lane:
    """The writers and counts of one partition inside a task."""

    rows: StagedWriter
    bad: StagedWriter
    counts: Counts = field(default_factory=Counts)
    replayed: set[int] = field(default_factory=set)


class SliceWriter:
    """The last stage: writes good and bad rows of each partition to staged files, and counts them."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._lanes: dict[PartitionKey, _Lane] = {}
        self._new_fields: NewFields = {}
        self._refused: dict[PartitionKey, dict[int, str]] = {}
        self._first_error = ""
        self._reasons: tuple[Reason, ...] = ()
        self._marks: list[Marks] = []

    def write(self, key: PartitionKey, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> None:
        """Write rows that came from the Kafka rows beside them; one whose partition values cannot be written is bad."""
        fitted = fit_columns(rows, self._flow.table.schema)
        faults = partition_faults(fitted, self._flow.table.partition_by)
        if faults:
            self._refuse(key, kafka, faults)
            kept = rows_without(fitted.num_rows, faults)
            fitted, kafka = take(fitted, kept), take(kafka, kept)
        lane = self._lane(key)
        lane.rows.write(fitted)
        lane.counts += Counts(read=fitted.num_rows, written=fitted.num_rows)
        if self._flow.replay_run is not None:
            lane.replayed.update(kafka.column("offset").to_pylist())
        if self._flow.failpoint is not None:
            self._flow.failpoint.reach("writing")

    def _refuse(self, key: PartitionKey, kafka: pa.RecordBatch, faults: Mapping[int, str]) -> None:
        """Quarantine rows; behind `sql:` their bytes are gone, so they are named and the batch is run again."""
        bad = bad_rows(kafka, faults)
        if "value" in kafka.schema.names:
            self.quarantine(key, bad)
            return
        offsets = bad.kafka.column("offset").to_pylist()
        self._refused.setdefault(key, {}).update(zip(offsets, bad.errors.to_pylist(), strict=True))

    def quarantine(self, key: PartitionKey, bad: BadRows) -> None:
        count = len(bad.errors)
        if not count:
            return
        lane = self._lane(key)
        if self._flow.replay_run is None:
            topic_id = self._flow.slices[key].topic_id
            lane.bad.write(quarantine_rows(bad, self._flow.job, topic_id, self._flow.batch_id, datetime.now(UTC)))
        lane.counts += Counts(read=count, quarantined=count)
        self._reasons = merged_reasons([*self._reasons, *reasons_of(key, bad)])
        if not self._first_error:
            offset = bad.kafka.column("offset")[0].as_py()
            self._first_error = f"{key[0]}/{key[1]} offset {offset}: {bad.errors[0].as_py()}"

    def filter(self, key: PartitionKey, count: int) -> None:
        if count:
            self._lane(key).counts += Counts(read=count, filtered=count)

    def note_fields(self, fields: NewFields) -> None:
        add_fields(self._new_fields, fields)

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._marks.append({key: (mark,)})

    def finish(self) -> TaskReport:
        return TaskReport(
            counts={key: lane.counts for key, lane in self._lanes.items()},
            files=self._finished(lane.rows for lane in self._lanes.values()),
            quarantine_files=self._finished(lane.bad for lane in self._lanes.values()),
            new_fields=to_json(self._new_fields),
            refused=self._refused,
            first_error=self._first_error,
            reasons=self._reasons,
            replayed={key: ranges_of(lane.replayed) for key, lane in self._lanes.items() if lane.replayed},
            marks=gathered_marks(self._marks),
        )

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.rows.abandon()
            lane.bad.abandon()

    @staticmethod
    def _finished(writers: Iterator[StagedWriter]) -> tuple[StagedFile, ...]:
        return tuple(file for writer in writers for file in writer.finish())

    def _lane(self, key: PartitionKey) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = _Lane(
                StagedWriter(self._flow.table, lambda: self._name(key), *key),
                StagedWriter(self._flow.quarantine, lambda: self._name(key, owner_tag(self._flow.job)), *key),
            )
            self._lanes[key] = lane
        return lane

    def _name(self, key: PartitionKey, owner: str | None = None) -> str:
        if self._flow.replay_run is not None:
            return replayed_name(str(self._flow.replay_run), uuid.uuid4().hex, owner)
        piece = self._flow.slices[key]
        return staged_name(piece.topic_id, key[1], piece.start, piece.end, uuid.uuid4().hex, owner)


def fused_stage(flow: Flow) -> Stage:
    """Decode, compute and write in one pass over Arrow batches."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        decoder = decoder_for(flow.decode, flow.decoded, flow.on, stated=flow.stated)
        writer = SliceWriter(flow)
        try:
            for batch in batches:
                if (marked := mark_of(batch)) is not None:
                    writer.note_mark(*marked)
                for key, part in by_partition(batch):
                    part, poisoned = without_poison(part, flow.poison.get(key, {}))
                    writer.quarantine(key, poisoned)
                    for ready in decode_rows(decoder, flow.columns, part):
                        writer.write(key, ready.rows, ready.kafka)
                        for bad in ready.bad:
                            writer.quarantine(key, bad)
                        writer.filter(key, ready.filtered)
                        writer.note_fields(ready.new_fields)
            yield report_batch(writer.finish())
        except BaseException:
            writer.abandon()
            raise

    return run


def without_poison(batch: pa.RecordBatch, poison: Mapping[int, str]) -> tuple[pa.RecordBatch, BadRows]:
    """Take the poisonous records out of a batch of one partition."""
    offsets = batch.column("offset")
    found = pc.is_in(offsets, pa.array(list(poison), pa.int64())) if poison else None
    if found is None or not pc.any(found).as_py():
        return batch, BadRows(batch.slice(0, 0), pa.array([], pa.string()))
    bad = batch.filter(found)
    errors = [poison[offset] for offset in bad.column("offset").to_pylist()]
    return batch.filter(pc.invert(found)), BadRows(bad, pa.array(errors, pa.string()))


@dataclass(frozen=True, slots=True)
class ReadyRows:
    """Decoded rows with their computed columns, and what could not become a row."""

    rows: pa.RecordBatch
    kafka: pa.RecordBatch
    bad: tuple[BadRows, ...]
    filtered: int
    new_fields: NewFields


def decode_rows(decoder: Decoder, columns: Mapping[str, Expression], batch: pa.RecordBatch) -> Iterator[ReadyRows]:
    """Decode one batch of one partition and compute its columns; in parts, if it is large unpacked."""
    for decoded in in_parts(decoder.decode, batch):
        computed = compute(decoded.rows, columns)
        yield ReadyRows(
            rows=_joined(computed.rows, computed.columns),
            kafka=computed.rows.kafka,
            bad=(decoded.bad, computed.bad),
            filtered=decoded.filtered,
            new_fields=decoded.new_fields,
        )


def _joined(rows: DecodedRows, computed: pa.RecordBatch) -> pa.RecordBatch:
    if not computed.num_columns:
        return rows.columns
    return pa.RecordBatch.from_arrays(
        [*rows.columns.columns, *computed.columns], schema=pa.schema([*rows.columns.schema, *computed.schema])
    )


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """Split a batch by topic and partition; one that a piece gave always has just one."""
    if not batch.num_rows:
        return
    topics, numbers = batch.column("topic"), batch.column("partition")
    span = pc.min_max(numbers)
    if span["min"] == span["max"] and pc.count_distinct(topics).as_py() == 1:
        yield (topics[0].as_py(), numbers[0].as_py()), batch
        return
    pairs = pa.table({"topic": topics, "partition": numbers}).group_by(["topic", "partition"]).aggregate([])
    for pair in pairs.to_pylist():
        mine = pc.and_(pc.equal(topics, pair["topic"]), pc.equal(numbers, pair["partition"]))
        yield (pair["topic"], pair["partition"]), batch.filter(mine)


def report_batch(report: TaskReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode_report(report)])], schema=REPORT_SCHEMA)
