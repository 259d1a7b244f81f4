"""`status` of an export: its partitions, types and days from real logs, the ends of partitions from a real broker."""

from __future__ import annotations

import signal
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import TransientError
from penstock.job.spec import job_of, kafka_of
from penstock.logs.registry import open_log
from penstock.reporting.model import AlertKind
from penstock.tables.export.monitoring import ExportAlert
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status import export_status
from tests.cases.export_status import Fan, fan_of, with_fs_behind
from tests.support.kafka import Produce, Topics
from tests.support.processes import penstock


@pytest.fixture
def fan(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> Fan:
    return fan_of(bootstrap, topic, produce, tmp_path)


def test_partitions_show_the_read_and_the_fully_written_position(fan: Fan) -> None:
    with_fs_behind(fan)
    zero, one = fan.partition(0), fan.partition(1)
    assert (fan.global_position(0), fan.global_position(1)) == (10, 0)
    assert (zero.position, zero.end, zero.lag_records, zero.mirrored) == (10, 10, 0, 10)
    assert (one.position, one.end, one.lag_records, one.mirrored) == (8, 10, 2, 0)
    assert (one.totals.read, one.totals.written, one.totals.deferred, one.token) == (8, 3, 5, 1)


def test_records_lost_before_their_type_caught_up_are_reported_as_a_gap(fan: Fan, topic: Topics) -> None:
    with_fs_behind(fan)
    topic.cut(fan.partitions[1].topic, 3, partition=1)
    [text] = [alert.text for alert in fan.status().alerts if alert.kind is AlertKind.GAP_AHEAD]
    assert text == f"{fan.partitions[1]}: the log no longer has offsets [0, 3)"


@pytest.mark.usefixtures("impatient")
def test_status_without_kafka_shows_the_positions_of_the_tables(fan: Fan) -> None:
    with_fs_behind(fan)
    away = replace(fan.job, log=replace(kafka_of(fan.job), bootstrap="127.0.0.1:1"))
    result = export_status(job_of(away, ExportSpec), open_log, time.time)
    assert [(partition.position, partition.end) for partition in result.partitions] == [(10, None), (8, None)]
    assert result.exit_code == TransientError.exit_code
    assert ExportAlert.DISCREPANCY in [alert.kind for alert in result.alerts]


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
