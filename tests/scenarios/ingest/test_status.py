"""`status` shows the state of a job, from its table and its log."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.status import page
from penstock.cli.status import status as status_command
from penstock.job.spec import AlertLimits, JobSpec, Secret, kafka_of
from penstock.logs.log import Log
from penstock.logs.registry import open_log
from penstock.watch.status import AlertKind, JobStatus, status
from tests.cases.status import HOUR_SECONDS, filled, hour_old_job, kinds, mirror_all
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, SmallTable, partitions_of

RETENTION_SECONDS = 7 * 86_400
"""Of a topic without a setting of its own."""


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


LATER = 700.0
"""More seconds than records may wait without a move, by default."""


def at(seconds: float) -> Callable[[], float]:
    """The clock of a status that is asked so long after now."""
    return lambda: time.time() + seconds


def test_the_history_of_the_table_is_enough_for_a_verdict(job: JobSpec) -> None:
    _, one = partitions_of(job)
    filled(job)
    # Records of an hour ago wait in partition 1, but the job has just committed.
    assert verdicts(status(job)) == ("OK", ["OK", "OK"])
    stopped = status(job, now=at(LATER))
    assert verdicts(stopped) == ("STOP", ["OK", "STOP"])
    assert stopped.judgement.reason.startswith(f"{one}: records wait for 72min, and the last commit was 12min ago")


def test_a_position_below_what_the_group_shows_went_back(job: JobSpec) -> None:
    filled(job)
    mirror_all(job, {0: 10, 1: 7})
    result = status(job)
    assert verdicts(result) == ("REWIND", ["OK", "REWIND"])
    assert "the position went back from 7 to 4" in result.judgement.reason


def test_a_commit_after_the_table_was_read_is_no_rewind(job: JobSpec) -> None:
    table = filled(job)
    _, one = partitions_of(job)

    def open_later(spec: JobSpec) -> Log:
        """The job commits and mirrors between the look at the table and the look at the group."""
        table.commit(one, Load(4, 10, range(4, 10)))
        mirror_all(job, {0: 10, 1: 10})
        return open_log(spec)

    assert verdicts(status(job, open_log=open_later)) == ("OK", ["OK", "OK"])


def test_a_position_beyond_the_log_is_an_error(job: JobSpec) -> None:
    SmallTable(job).start(partitions_of(job)[0], 11)
    result = status(job)
    assert verdicts(result) == ("ERR", ["ERR"])
    assert "beyond the log's end 10" in result.judgement.reason


def test_limits_of_the_job_file_are_alerts_of_every_kind_of_table(job: JobSpec) -> None:
    filled(job)
    limited = replace(job, alerts=AlertLimits(lag_records_max=6, age_seconds_max=60))
    result = status(limited)
    assert {AlertKind.LAG, AlertKind.AGE} <= {*kinds(result)}
    assert verdicts(result) == ("ERR", ["OK", "ERR"])
    assert {"lag", "age"} <= {alert["kind"] for alert in result.as_json()["alerts"]}


def test_a_status_has_the_newest_commits(job: JobSpec) -> None:
    filled(job)
    newest, older = status(job).commits
    assert (newest.read, newest.written, newest.quarantined, newest.files) == (4, 4, 0, 1)
    assert (older.read, older.written, older.quarantined, older.files) == (10, 9, 1, 1)
    assert newest.version > older.version and newest.at >= older.at
    assert newest.size_bytes > 0


def test_the_age_of_the_oldest_record_is_compared_with_the_retention_of_its_topic(job: JobSpec) -> None:
    filled(job)
    _, one = status(job).partitions
    assert one.retention_seconds == RETENTION_SECONDS
    assert one.retention_share == pytest.approx(HOUR_SECONDS / RETENTION_SECONDS, rel=0.05)


def verdicts(result: JobStatus) -> tuple[str, list[str]]:
    return result.judgement.verdict.value, [partition.judgement.verdict.value for partition in result.partitions]
