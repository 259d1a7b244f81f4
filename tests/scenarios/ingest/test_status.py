"""`status` shows the state of a job, from its table and its log."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.status import page
from penstock.cli.status import status as status_command
from penstock.job.spec import JobSpec, Secret, kafka_of
from penstock.watch.status import AlertKind, status
from tests.cases.status import filled, hour_old_job, kinds, mirror_all
from tests.support.kafka import Produce, Topics
from tests.support.small_table import SmallTable, partitions_of


@pytest.fixture
def job(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    return hour_old_job(bootstrap, topic, produce, tmp_path)


def test_a_job_without_a_table_has_not_started(job: JobSpec) -> None:
    result = status(job)
    assert not result.started
    assert result.exit_code == 0


def test_the_time_of_the_last_commit_is_shown(job: JobSpec) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    filled(job)
    committed_at = status(job).committed_at
    assert committed_at is not None and before <= committed_at <= datetime.now(UTC)


def test_quarantine_and_a_mirror_that_is_behind_raise_alerts(job: JobSpec) -> None:
    filled(job)
    mirror_all(job, {0: 10, 1: 3})
    result = status(job)
    assert result.quarantine_rows == 1
    assert kinds(result) == [AlertKind.MIRROR_LAGGING, AlertKind.QUARANTINE]


def test_a_position_beyond_the_log_is_an_alert(job: JobSpec) -> None:
    zero, _ = partitions_of(job)
    table = SmallTable(job)
    table.start(zero, 11)
    assert kinds(status(job)) == [AlertKind.BEYOND_END]


def test_a_path_from_a_secret_reference_is_not_shown(job: JobSpec) -> None:
    filled(job)
    hidden = replace(job, table=replace(job.table, path=Secret(job.table.path)))
    printed = io.StringIO()
    result = status(hidden)
    Console(file=printed, width=200).print(page([result], verbose=True))
    assert job.table.path not in printed.getvalue()
    assert job.table.path not in json.dumps(result.as_json())


def test_the_command_prints_text_and_json(job: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(job)
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"job: orders\n"
        f"log:\n  kafka: {{bootstrap: '{kafka_of(job).bootstrap}', topics: [{job.log.topics[0]}]}}\n"
        f"decode: json\nschema: {{id: long}}\n"
        f"table:\n  delta: {{path: {job.table.path}}}\n"
    )
    status_command([file], json=True)
    [output] = json.loads(capsys.readouterr().out)
    assert (output["job"], output["started"], output["version"]) == ("orders", True, 4)
    assert [item["lag_records"] for item in output["partitions"]] == [0, 6]
    printed = io.StringIO()
    Console(file=printed, width=200).print(page([status(job)], verbose=True))
    assert f"{job.log.topics[0]}/1" in printed.getvalue()
