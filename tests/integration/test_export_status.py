"""`status` of an export: its partitions, types and days from a real ledger, the log's side from a real broker."""

from __future__ import annotations

import signal
import socket
import time
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.job.spec import JobSpec, job_of, kafka_of
from penstock.logs.log import Partition
from penstock.logs.registry import open_log
from penstock.status.model import AlertKind, JobStatus, PartitionStatus
from penstock.tables.export.ledger.state import Cause
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.status import ExportStatus, export_status
from penstock.tables.export.status.types import TypeStatus
from penstock.tables.export.table import ExportTable
from penstock.tables.registry import load_job
from penstock.watch.status import status
from tests.kafka import Produce, Topics
from tests.processes import penstock
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

    def of_export(self) -> ExportStatus:
        """What only exports tell."""
        return export_status(job_of(self.job, ExportSpec), open_log, time.time)

    def types(self) -> dict[str, TypeStatus]:
        return {each.name: each for each in self.of_export().types}

    def partition(self, number: int) -> PartitionStatus:
        return self.status().partitions[number]

    def global_position(self, number: int) -> int | None:
        [found] = [each.value for each in self.partition(number).further if each.heading == "global"]
        return found

    def kinds(self) -> list[StrEnum]:
        return [each.kind for each in self.status().alerts]

    def mirror(self, zero: int, one: int) -> None:
        with closing(open_log(self.job)) as log:
            log.show(dict(zip(self.partitions, (zero, one), strict=True)))


@pytest.fixture
def fan(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> Fan:
    name = topic(2)
    for number in range(2):
        produce(name, ["{}"] * 10, partition=number)
    path = tmp_path / f"{name}.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=name, root=tmp_path / "root"))
    return Fan(path, tmp_path / "root")


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


def test_partitions_tell_what_is_read_and_below_what_everything_is_written(fan: Fan) -> None:
    with_fs_behind(fan)
    zero, one = fan.partition(0), fan.partition(1)
    assert (fan.global_position(0), fan.global_position(1)) == (10, 0)
    assert (zero.position, zero.end, zero.lag_records, zero.mirrored) == (10, 10, 0, 10)
    assert (one.position, one.end, one.lag_records, one.mirrored) == (8, 10, 2, 0)
    assert (one.totals.read, one.totals.written, one.totals.deferred, one.token) == (8, 3, 5, 1)


def test_records_that_the_log_lost_before_their_type_came_back_for_them_are_a_gap_ahead(
    fan: Fan, topic: Topics
) -> None:
    with_fs_behind(fan)
    topic.cut(fan.partitions[1].topic, 3, partition=1)
    [text] = [each.text for each in fan.status().alerts if each.kind is AlertKind.GAP_AHEAD]
    assert text == f"{fan.partitions[1]}: the log no longer has offsets [0, 3)"


@pytest.mark.usefixtures("impatient")
def test_a_log_that_is_away_leaves_the_ledgers_side(fan: Fan) -> None:
    with_fs_behind(fan)
    away = replace(fan.job, log=replace(kafka_of(fan.job), bootstrap="127.0.0.1:1"))
    found = export_status(job_of(away, ExportSpec), open_log, time.time)
    assert [(each.position, each.end) for each in found.common.partitions] == [(10, None), (8, None)]
    assert found.measured.lag_records == {}
    assert max(found.measured.discrepancy_records.values()) == 8
    assert found.common.exit_code == TransientError.exit_code
    [rules] = [each for each in found.whole().sections if each.key == "rules"]
    assert rules.lines == (
        "rules: failed writes 25.0% (limit 20), lag ? (limit 5), discrepancy 8 (limit 3), retention ? (limit 50)",
    )


# metrics


def test_a_running_export_shows_its_metrics_to_prometheus(fan: Fan) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with penstock("run", str(fan.path), "--json", "--metrics", str(port)) as process:
        process.wait_for("batch committed")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
            lines = response.read().decode().splitlines()
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0, process.last_words
    # The twenty records have no type.
    assert 'penstock_records_quarantined_total{job="fan"} 20.0' in lines
    assert 'penstock_job_running{job="fan"} 1.0' in lines
