"""An export of two types whose logs a test writes, to test its `status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.environment import Environment
from penstock.flow.write.manifest import Counts
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition, Slice
from penstock.logs.registry import open_log
from penstock.reporting.model import JobStatus, PartitionStatus
from penstock.tables.registry import load_job
from penstock.watch.status import status
from tests.support.export_root import ExportRoot
from tests.support.kafka import Produce, Topics

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


COLUMNS = pa.schema(
    [("at", pa.string()), ("kafka_topic", pa.string()), ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64())]
)
DAY = "2026-03-01"


@dataclass(slots=True)
class Fan:
    """A job of two types over a topic of two partitions with ten records each; offsets below five are fs, others gc."""

    path: Path
    root: Path
    now: float = 1_772_500_000.0
    partitions: list[Partition] = field(default_factory=list)
    _filled: ExportRoot | None = None

    @property
    def job(self) -> JobSpec:
        return load_job(self.path)

    def start(self) -> None:
        """Create the logs, and start both partitions."""
        with closing(open_log(self.job)) as log:
            self.partitions = list(log.partitions())
        environment = Environment(now=lambda: self.now, sleep=lambda _: None)
        self._filled = ExportRoot(self.path, environment, columns=COLUMNS)
        for partition in self.partitions:
            self._filled.start(partition)

    def write(
        self,
        number: int,
        start: int,
        end: int,
        failed: Collection[str] = (),
        deferred: Collection[str] = (),
        watermark_ms: int | None = None,
    ) -> None:
        """Commit a slice; types in `deferred` are not written, files of types in `failed` could not be written."""
        shares = self._shares(number, start, end)
        for name in {*failed, *deferred} & shares.keys():
            counts = Counts(read=shares[name].counts.read)
            shares[name] = Share(counts, shares[name].first, failed="made to fail" if name in failed else "")
        if watermark_ms is not None:
            shares[UNROUTED] = Share(event_ms_max=watermark_ms)
        takes = {name: start for name in ("fs", "gc") if name not in deferred}
        self._land(Slice(self.partitions[number], start, end, start), shares, takes)

    def catch_up(self, number: int, takes: Mapping[str, int], end: int) -> None:
        start = min(takes.values())
        shares = {name: share for name, share in self._shares(number, start, end).items() if name in takes}
        self._land(Slice(self.partitions[number], start, end, start), shares, takes, main=False)

    def _shares(self, number: int, start: int, end: int) -> dict[str, Share]:
        assert self._filled is not None
        places = {("fs", DAY): range(start, min(end, 5)), ("gc", DAY): range(max(start, 5), end)}
        return self._filled.stage(self.partitions[number], (start, end), places, pieces=(start,))

    def _land(
        self,
        piece: Slice,
        shares: Mapping[str, Share],
        takes: Mapping[str, int],
        main: bool = True,
    ) -> None:
        assert self._filled is not None
        assert not self._filled.land(piece, shares, takes, main=main).refused

    def status(self) -> JobStatus:
        return status(self.job)

    def as_json(self) -> dict[str, Any]:
        """The status for programs."""
        return self.status().as_json()

    def types(self) -> dict[str, dict[str, Any]]:
        return {item["type"]: item for item in self.as_json()["types"]}

    def partition(self, number: int) -> PartitionStatus:
        return self.status().partitions[number]

    def global_position(self, number: int) -> int | None:
        [position] = [item.value for item in self.partition(number).further if item.heading == "global"]
        return position

    def kinds(self) -> list[StrEnum]:
        return [alert.kind for alert in self.status().alerts]

    def texts(self, kind: StrEnum) -> list[str]:
        return [alert.text for alert in self.status().alerts if alert.kind is kind]

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


def with_fs_behind(fan: Fan, watermark: str = "2026-03-02T05:00:00") -> None:
    """Partition 0 is read to its end; of partition 1 eight offsets are read, and fs could not be written."""
    fan.start()
    fan.write(0, 0, 10, watermark_ms=at(watermark))
    fan.write(1, 0, 8, failed=["fs"], watermark_ms=at(watermark))
    fan.mirror(10, 0)
