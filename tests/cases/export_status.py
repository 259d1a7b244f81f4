"""An export of two types with a ledger that a test writes, for what `status` says of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.environment import Environment
from penstock.job.spec import JobSpec, job_of
from penstock.logs.log import Partition
from penstock.logs.registry import open_log
from penstock.status.model import JobStatus, PartitionStatus
from penstock.tables.export.state import Cause
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.export import ExportTable
from penstock.tables.registry import load_job
from penstock.watch.status import status
from tests.kafka import Produce, Topics
from tests.routed_parts import Reader, begun, landed, run_of, staged_in

JOB = """\
job: fan
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
route: {{by: field(type)}}
event_time: at
types: {{fs: {{schema: {{at: string}}}}, gc: {{schema: {{at: string}}}}}}
days: {{complete_after: 2h}}
table:
  export: {{path: "{root}"}}
flush: {{allowed_latency: 100ms}}
alerts: {{failed_writes_percent: 20, lag_records: 5, discrepancy_records: 3}}
"""


@dataclass(slots=True)
class Fan:
    """A job of two types over a topic of two partitions with ten records each, and its ledger."""

    path: Path
    root: Path
    now: float = 1_772_500_000.0
    partitions: list[Partition] = field(default_factory=list)

    @property
    def job(self) -> JobSpec:
        return load_job(self.path)

    def table(self) -> ExportTable:
        return ExportTable(job_of(self.job, ExportSpec), Environment(now=lambda: self.now, sleep=lambda _: None))

    def started(self) -> ExportTable:
        with closing(open_log(self.job)) as log:
            self.partitions = list(log.partitions())
        table = self.table()
        for each in self.partitions:
            begun(table, each)
        return table

    def reader(self, table: ExportTable, number: int) -> Reader:
        """Offsets below five are fs, the others gc."""
        events = [*run_of("fs", 0, 5), *run_of("gc", 5, 10)]
        return Reader(events, ("fs", "gc"), self.partitions[number], stage=staged_in(table))

    def status(self) -> JobStatus:
        return status(self.job)

    def told(self) -> dict[str, Any]:
        """The status for programs."""
        return self.status().as_json()

    def types(self) -> dict[str, dict[str, Any]]:
        return {each["type"]: each for each in self.told()["types"]}

    def partition(self, number: int) -> PartitionStatus:
        return self.status().partitions[number]

    def global_position(self, number: int) -> int | None:
        [found] = [each.value for each in self.partition(number).further if each.heading == "global"]
        return found

    def kinds(self) -> list[StrEnum]:
        return [each.kind for each in self.status().alerts]

    def texts(self, kind: StrEnum) -> list[str]:
        return [each.text for each in self.status().alerts if each.kind is kind]

    def mirror(self, zero: int, one: int) -> None:
        with closing(open_log(self.job)) as log:
            log.show(dict(zip(self.partitions, (zero, one), strict=True)))


def fan_of(bootstrap: str, topic: Topics, produce: Produce, folder: Path) -> Fan:
    name = topic(2)
    for number in range(2):
        produce(name, ["{}"] * 10, partition=number)
    path = folder / f"{name}.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=name, root=folder / "root"))
    return Fan(path, folder / "root")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def with_fs_behind(fan: Fan, watermark: str = "2026-03-02T05:00:00") -> ExportTable:
    """Partition 0 is read to its end; of partition 1 eight offsets are read, and fs could not be written."""
    table = fan.started()
    landed(table, fan.reader(table, 0).main(0, 10, watermark_ms=at(watermark)))
    table.failures["fs"] = 1
    lagging = {"fs": Cause.FAILING}
    landed(table, fan.reader(table, 1).main(0, 8, lagging, watermark_ms=at(watermark)))
    fan.mirror(10, 0)
    return table
