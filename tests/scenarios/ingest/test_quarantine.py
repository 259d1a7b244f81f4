"""Records that cannot be written: in quarantine once, there to be looked at (RULES Q1)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.engine.replay import ReplayReport, replay
from penstock.errors import UserError
from penstock.flow.write.manifest import Counts
from penstock.job.spec import JobSpec
from penstock.lake.state import Totals
from penstock.quarantine.rows import list_rows
from penstock.staging.bad_share import BadShareError
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import (
    BROKEN,
    EXTRA,
    GOOD,
    job_text,
    orders,
    quarantined,
    run_once,
    tables,
    totals,
    with_extra_column,
    written,
)


@pytest.fixture
def job(bootstrap: str, topic: Topics, tmp_path: Path) -> JobSpec:
    return orders(bootstrap, topic(), tmp_path)


@pytest.mark.parametrize("step", ["committed", "quarantined"])
def test_a_crash_around_the_append_leaves_each_bad_record_in_quarantine_once(
    step: str, job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [BROKEN, GOOD])
    with pytest.raises(CrashError):
        run_once(job, spark, crash_at(step))
    run_once(job, spark)
    assert written(job) == [(0, 1)]
    assert quarantined(job) == [(0, 0)]


def test_a_slice_of_only_bad_records_moves_the_position_without_a_data_file(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [BROKEN, BROKEN])
    run_once(job, spark)
    data, _ = tables(job)
    assert data.handle.file_uris() == []
    assert quarantined(job) == [(0, 0), (0, 1)]
    assert totals(job, spark) == Totals(read=2, quarantined=2)


def test_the_listing_shows_the_newest_first_and_counts_kinds_of_errors(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], ['{"id": "a"}', '{"id": "b"}'])
    run_once(job, spark)
    produce(job.log.topics[0], [EXTRA])
    run_once(job, spark)
    _, quarantine = tables(job)
    listing = list_rows(quarantine, limit=2)
    assert listing.rows == 3
    assert list(listing.kinds.values()) == [2, 1]
    assert [(entry.offset, entry.size_bytes) for entry in listing.newest] == [(2, len(EXTRA)), (1, len('{"id": "b"}'))]
    assert [kind for kind in listing.kinds if "extra" in kind] == list(listing.kinds)[1:]


@pytest.fixture
def job_file(job: JobSpec, tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(job_text(job))
    return path


def test_an_empty_quarantine_is_reported_and_a_missing_record_is_a_user_error(
    job: JobSpec, job_file: Path, spark: SparkSession, produce: Produce
) -> None:
    place = f"{job.log.topics[0]}/0/0"
    for command in (("list", str(job_file)), ("show", str(job_file), place)):
        assert "empty" in penstock(*command).stdout
    assert json.loads(penstock("list", str(job_file), "--json").stdout)["rows"] == 0
    assert json.loads(penstock("replay", str(job_file), "--json").stdout)["replayed"] == 0
    produce(job.log.topics[0], [GOOD, BROKEN])
    run_once(job, spark)
    for wrong in (place, "no-place"):
        assert isinstance(penstock("show", str(job_file), wrong, fails=True).exception, UserError)


def penstock(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result


@pytest.mark.parametrize("deleted", ["", "_delta_log"])
def test_a_recreated_table_neither_loses_nor_doubles_a_record_that_was_in_quarantine(
    deleted: str, job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [GOOD, EXTRA, BROKEN, EXTRA, GOOD])
    run_once(job, spark)
    shutil.rmtree(Path(job.table.path, deleted))
    run_once(with_extra_column(job), spark)
    assert (written(job), quarantined(job)) == ([(0, 0), (0, 1), (0, 3), (0, 4)], [(0, 2)])
    assert replay(with_extra_column(job), spark=spark) == ReplayReport(still_bad=1, remaining=1)
    assert (written(job), quarantined(job)) == ([(0, 0), (0, 1), (0, 3), (0, 4)], [(0, 2)])


def test_a_job_whose_records_mostly_do_not_fit_stops_before_it_commits_any(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    timed = replace(job, schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    produce(job.log.topics[0], [f'{{"id": {number}, "at": {1_700_000_000_000 + number}}}' for number in range(960)])
    produce(job.log.topics[0], [GOOD] * 40)
    with pytest.raises(BadShareError) as stopped:
        run_once(timed, spark)
    assert stopped.value.total == Counts(read=1000, written=40, quarantined=960)
    assert [(reason.kind, reason.count) for reason in stopped.value.reasons] == [
        ("at: expected timestamp, found number", 960)
    ]
    assert f"{job.log.topics[0]}/0 offset 0" in stopped.value.detail
    assert "timestamp_millis(at)" in stopped.value.hint
    assert written(timed) == []
    assert not Path(quarantine_of(job), "_delta_log").exists()
    run_once(replace(timed, on=replace(timed.on, bad_share=1.0)), spark)
    assert (len(written(timed)), len(quarantined(timed))) == (40, 960)
