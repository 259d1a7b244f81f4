"""A real small Delta table of a job, filled slice by slice as the engine would, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.expressions import KafkaField
from penstock.job.spec import DecodeSpec, JobSpec, KafkaLogSpec
from penstock.lake.delta.opening import open_or_create
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.logs.log import EpochMark, Partition, Slice
from penstock.logs.registry import open_log
from penstock.quarantine.table import Quarantine
from penstock.tables.delta.spec import DeltaSpec

SCHEMA = pa.schema([("id", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
TOKEN = 1


def small_job(bootstrap: str, topic: str, folder: Path, name: str = "orders") -> JobSpec:
    """Keeps an id and the place of each record."""
    return JobSpec(
        name=name,
        log=KafkaLogSpec(bootstrap, topics=(topic,), group=f"{name}-{uuid.uuid4().hex[:8]}"),
        decode=DecodeSpec("json"),
        schema=pa.schema([("id", pa.int64())]),
        columns={"partition": KafkaField("partition"), "offset": KafkaField("offset")},
        table=DeltaSpec(str(folder / "orders")),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """The offsets `[start, end)` of a slice: those neither good nor bad are filtered, holes or a gap."""

    start: int
    end: int
    good: Sequence[int]
    bad: Sequence[int] = ()
    filtered: int = 0
    gap: int = 0
    contents: Mapping[int, tuple[bytes | None, str]] = field(default_factory=dict)
    """The value and the error of some of the bad records."""


@dataclass(slots=True)
class SmallTable:
    """Commits to the job's table."""

    job: JobSpec
    table: DeltaLog = field(init=False)
    quarantine: Quarantine = field(init=False)

    def __post_init__(self) -> None:
        self.table = open_or_create(self.job.table, self.job.name, self.schema, "quarantine")
        self.quarantine = Quarantine(self.job, self.table, Environment())

    @property
    def schema(self) -> pa.Schema:
        """Without the places of rows if the job keeps none."""
        return SCHEMA if self.job.columns else pa.schema([SCHEMA.field("id")])

    def start(self, partition: Partition, offset: int = 0) -> None:
        self.table.commit(Proposal(self.job.name, new_batch_id(), (StartPart(partition, offset, TOKEN),)))

    def commit(
        self,
        partition: Partition,
        load: Load,
        counts: Counts | None = None,
        quarantined: bool = True,
        mark: EpochMark | None = None,
    ) -> None:
        """Write the rows and commit the slice; `counts` replaces the true ones, `quarantined` appends bad records."""
        read = len(load.good) + len(load.bad) + load.filtered
        honest = Counts(read, len(load.good), len(load.bad), load.filtered)
        part = SlicePart(
            Slice(partition, load.start, load.end, load.start + load.gap),
            TOKEN,
            counts or honest,
            self.stage(partition, load, load.good),
            self._stage_bad(partition, load),
            mark=mark,
        )
        outcome = self.table.commit(Proposal(self.job.name, new_batch_id(), (part,)))
        assert not outcome.refused
        if quarantined:
            self.quarantine.append(outcome.accepted)

    def stage(self, partition: Partition, load: Load, offsets: Sequence[int]) -> tuple[StagedFile, ...]:
        """Write a Parquet file of rows with these offsets."""
        rows = pa.RecordBatch.from_arrays(
            [
                pa.array(offsets, pa.int64()),
                pa.array([partition.number] * len(offsets), pa.int32()),
                pa.array(offsets, pa.int64()),
            ],
            schema=SCHEMA,
        ).select(self.schema.names)
        return self._write(partition, load, rows, WriteOptions(self.job.table.path, self.schema))

    def _stage_bad(self, partition: Partition, load: Load) -> tuple[StagedFile, ...]:
        rows = pa.RecordBatch.from_pylist(
            [
                {
                    "job": self.job.name,
                    "topic": partition.topic,
                    "topic_id": partition.topic_id,
                    "partition": partition.number,
                    "offset": offset,
                    "value": value,
                    "error": error,
                    "quarantined_at": datetime.now(UTC),
                }
                for offset in load.bad
                for value, error in [load.contents.get(offset, (b"bad", "not JSON"))]
            ],
            schema=QUARANTINE_SCHEMA,
        )
        return self._write(partition, load, rows, WriteOptions(self.quarantine.url, QUARANTINE_SCHEMA))

    def _write(
        self, partition: Partition, load: Load, rows: pa.RecordBatch, options: WriteOptions
    ) -> tuple[StagedFile, ...]:
        def name() -> str:
            return staged_name(partition.topic_id, partition.number, load.start, load.end, uuid.uuid4().hex)

        writer = StagedWriter(options, name, partition.topic, partition.number)
        writer.write(rows)
        return writer.finish()


def without_offsets(job: JobSpec) -> JobSpec:
    """The same job, without the columns in which places are kept."""
    return replace(job, columns={})


def partitions_of(job: JobSpec) -> tuple[Partition, ...]:
    with closing(open_log(job)) as log:
        return log.partitions()


def started(job: JobSpec) -> SmallTable:
    """A table in which every partition of the job begins at 0, and nothing is read."""
    table = SmallTable(job)
    for partition in partitions_of(job):
        table.start(partition)
    return table
