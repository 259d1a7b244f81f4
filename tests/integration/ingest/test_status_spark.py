"""`status` shows the state of a job, from its table and its log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from penstock.cli.status import FailOn
from penstock.cli.status import status as status_command
from penstock.errors import TransientError
from penstock.job.spec import JobSpec, kafka_of
from penstock.watch.status import AlertKind, status
from tests.cases.status import HOUR_SECONDS, filled, hour_old_job, kinds, mirror_all
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, partitions_of
from tests.support.waiting import wait_until


@pytest.fixture
def job(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    return hour_old_job(bootstrap, topic, produce, tmp_path)


def test_positions_lag_and_age_of_the_oldest_unread_record_are_shown(job: JobSpec) -> None:
    filled(job)
    mirror_all(job, {0: 10, 1: 4})
    zero, one = status(job).partitions
    assert (zero.position, zero.end, zero.lag_records, zero.lag_seconds, zero.mirrored) == (10, 10, 0, None, 10)
    assert (one.position, one.end, one.lag_records, one.mirrored) == (4, 10, 6, 4)
    assert one.lag_seconds is not None
    assert HOUR_SECONDS <= one.lag_seconds < HOUR_SECONDS + 300
    assert (zero.totals.written, zero.totals.quarantined, zero.token) == (9, 1, 1)


def test_a_gap_ahead_is_an_alert_and_a_recorded_one_is_listed(job: JobSpec, topic: Topics) -> None:
    table = filled(job)
    mirror_all(job, {0: 10, 1: 4})
    _, one = partitions_of(job)
    topic.cut(one.topic, 7, partition=1)
    ahead = status(job)
    assert kinds(ahead) == [AlertKind.GAP_AHEAD, AlertKind.QUARANTINE]
    table.commit(one, Load(4, 10, [7, 8, 9], gap=3))
    mirror_all(job, {0: 10, 1: 10})
    after = status(job)
    assert kinds(after) == [AlertKind.QUARANTINE]
    assert after.gap_offsets == 3
    assert [(gap.partition, gap.start, gap.end) for gap in after.gaps] == [(one, 4, 7)]


def test_a_deleted_topic_raises_an_alert(job: JobSpec, topic: Topics) -> None:
    filled(job)
    topic.delete(job.log.topics[0])
    wait_until(lambda: AlertKind.TOPIC_GONE in kinds(status(job)))


def away(job: JobSpec) -> JobSpec:
    return replace(job, log=replace(kafka_of(job), bootstrap="127.0.0.1:1"))


@pytest.mark.usefixtures("impatient")
def test_status_without_the_log_shows_what_the_table_knows(job: JobSpec) -> None:
    filled(job)
    result = status(away(job))
    assert [(partition.position, partition.end, partition.lag_records) for partition in result.partitions] == [
        (10, None, None),
        (4, None, None),
    ]
    assert result.exit_code == TransientError.exit_code
    assert AlertKind.LOG_UNREACHABLE in kinds(result)


@pytest.mark.usefixtures("impatient")
def test_the_command_exits_with_the_code_of_the_error_when_the_log_is_away(
    job: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(job)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"job: orders\n"
        f"log:\n  kafka: {{bootstrap: '127.0.0.1:1', topics: [{job.log.topics[0]}]}}\n"
        f"decode: json\nschema: {{id: long}}\n"
        f"table:\n  delta: {{path: {job.table.path}}}\n"
    )
    with pytest.raises(typer.Exit) as exit_info:
        status_command([file], json=False)
    assert exit_info.value.exit_code == TransientError.exit_code
    assert "10" in capsys.readouterr().out


def test_the_command_fails_on_an_alert_if_asked_to(job: JobSpec, topic: Topics, tmp_path: Path) -> None:
    filled(job)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"job: orders\n"
        f"log:\n  kafka: {{bootstrap: '{kafka_of(job).bootstrap}', topics: [{job.log.topics[0]}]}}\n"
        f"decode: json\nschema: {{id: long}}\n"
        f"table:\n  delta: {{path: {job.table.path}}}\n"
    )
    topic.delete(job.log.topics[0])
    wait_until(lambda: AlertKind.TOPIC_GONE in kinds(status(job)))
    status_command([file], json=False)
    with pytest.raises(typer.Exit) as exit_info:
        status_command([file], json=False, fail_on=FailOn.ALERT)
    assert exit_info.value.exit_code == 1
