"""What a task of a job with one table does with its records: decode, compute columns, write staged files, count.

Without `sql:` all steps are one `mapInArrow` (`fused_stage`). With it, Spark's projection runs between
`decode_stage` and `write_stage`; hidden columns carry what the last stage needs to write and count (RULES P4).

The table is what a type is to a job with types, and takes every record: so nothing is routed, a failure to write
fails the batch, and files are distinguished by the table's partition columns instead of days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.flow.columns.computed import compute
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.columns.partition_values import partition_faults
from penstock.flow.decode.decoder import Decoder, decoder_for
from penstock.flow.rows import BadRows, bad_rows, in_parts, rows_without, take, with_columns
from penstock.flow.stage import Batches, Stage, TaskFlow, log_parts, run_task, without_poison
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, PartitionKey, RowWriter, ranges_of
from penstock.flow.write.report import UNROUTED, Share, TaskReport
from penstock.flow.write.tally import Tallies, TypeKey
from penstock.job.spec import SqlSpec
from penstock.logs.log import EpochMark


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlow(TaskFlow):
    """What tasks need to know that write to one table."""

    table: WriteOptions
    quarantine: WriteOptions

    def open_rows(self, key: PartitionKey, name: Callable[[], str]) -> RowWriter:
        """Where the rows of a partition are staged; `name` gives a fresh file name at each call."""
        return StagedWriter(self.table, name, *key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(TableFlow):
    """Everything that a task of a job with one table of rows needs to know."""

    decoded: pa.Schema
    visible: pa.Schema
    """The decoded fields and the computed columns: what `sql:` sees."""
    sql: SqlSpec | None
    drop: frozenset[str] = frozenset()
    """Decoded fields that are not columns of the table."""

    def decoder(self) -> Decoder:
        return decoder_for(self.decode, self.decoded, self.on, rare=self.on.rare_of(UNROUTED))

    def row_faults(self, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> Mapping[int, str]:
        """The rows that the table cannot take, by their numbers, with the reason."""
        return partition_faults(rows, self.table.partition_by)

    def completed(self, key: PartitionKey, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as they are staged: a table may keep columns that no record has."""
        return rows


FlowT = TypeVar("FlowT", bound=TableFlow)


@dataclass(slots=True)
class _PartitionFiles:
    """The files of one partition inside a task."""

    rows: RowWriter
    bad: StagedWriter


class StagingTask(Generic[FlowT]):
    """Stages good and bad rows by partition, and counts them."""

    def __init__(self, flow: FlowT) -> None:
        self._flow = flow
        self._lanes: dict[PartitionKey, _PartitionFiles] = {}
        self._tallies = Tallies(flow)
        self._refused: dict[PartitionKey, dict[int, str]] = {}

    def quarantine(self, key: PartitionKey, bad: BadRows) -> None:
        self._count(key, read=len(bad.errors))
        if (rows := self._tallies.quarantined(TypeKey(key, UNROUTED), bad)) is not None:
            with self._tallies.writing:
                self._lane(key).bad.write(rows)

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._tallies.note_mark(key, mark)

    def finish(self) -> TaskReport:
        with self._tallies.writing:
            staged = {
                TypeKey(key, UNROUTED): Share(files=lane.rows.finish(), quarantine_files=lane.bad.finish())
                for key, lane in self._lanes.items()
            }
        return self._tallies.report(staged, {}, self._refused)

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.rows.abandon()
            lane.bad.abandon()

    def _count(self, key: PartitionKey, **counts: int) -> None:
        self._tallies.add(TypeKey(key, UNROUTED), Share(Counts(**counts)))

    def _lane(self, key: PartitionKey) -> _PartitionFiles:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _PartitionFiles(
                self._flow.open_rows(key, lambda: self._name(key)),
                StagedWriter(self._flow.quarantine, lambda: self._name(key), *key),
            )
        return lane

    def _name(self, key: PartitionKey) -> str:
        return self._flow.new_file_name(key, self._flow.slices[key].start)


class SliceWriter(StagingTask[Flow]):
    """Fits rows to the table's columns and writes them; rows that the table cannot take are bad."""

    def write(self, key: PartitionKey, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> None:
        """Write rows that were decoded from these Kafka rows; one that the table cannot take is bad."""
        fitted = fit_columns(rows, self._flow.table.schema)
        faults = self._flow.row_faults(fitted, kafka)
        if faults:
            self._refuse(key, kafka, faults)
            kept = rows_without(fitted.num_rows, faults)
            fitted, kafka = take(fitted, kept), take(kafka, kept)
        self._count(key, read=fitted.num_rows, written=fitted.num_rows)
        if self._flow.replay_run is not None:
            replayed = ranges_of(kafka.column("offset").to_pylist())
            self._tallies.add(TypeKey(key, UNROUTED), Share(replayed=replayed))
        if not self._flow.dry:
            completed = self._flow.completed(key, fitted, kafka)
            with self._tallies.writing:
                self._lane(key).rows.write(completed)

    def _refuse(self, key: PartitionKey, kafka: pa.RecordBatch, faults: Mapping[int, str]) -> None:
        """Quarantine rows; after `sql:` their bytes are missing, so they are reported and the batch is run again."""
        bad = bad_rows(kafka, faults)
        if "value" in kafka.schema.names:
            self.quarantine(key, bad)
            return
        offsets = bad.kafka.column("offset").to_pylist()
        self._refused.setdefault(key, {}).update(zip(offsets, bad.errors.to_pylist(), strict=True))

    def filter(self, key: PartitionKey, count: int) -> None:
        self._count(key, read=count, filtered=count)


class TableTask(SliceWriter):
    """All steps of a record in a job without `sql:`."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._decoder = flow.decoder()

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None:
        part, poisoned = without_poison(part, self._flow.poison.get(key, {}))
        self.quarantine(key, poisoned)
        for decoded in in_parts(self._decoder.decode, part):
            computed = compute(decoded.rows, self._flow.columns)
            rows = with_columns(computed.rows.columns, computed.columns)
            if self._flow.drop:
                rows = rows.select([name for name in rows.schema.names if name not in self._flow.drop])
            self.write(key, rows, computed.rows.kafka)
            self.quarantine(key, decoded.bad)
            self.quarantine(key, computed.bad)
            self.filter(key, decoded.filtered)
            self._tallies.add_fields(TypeKey(key, UNROUTED), decoded.new_fields)


def fused_stage(flow: Flow) -> Stage:
    """Decode, compute and write in one pass over Arrow batches."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        task = TableTask(flow)
        return run_task(task, log_parts(batches, task.note_mark), flow.failpoint)

    return run
