"""Records that cannot be written: in quarantine once, there to be looked at (RULES Q1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.tables.quarantine_rows import list_rows
from penstock.tables.state import Totals
from tests.kafka import Produce, Topics
from tests.pipes import CrashError, crash_at
from tests.quarantined import BROKEN, EXTRA, GOOD, job_text, orders, quarantined, run_once, tables, totals, written


@pytest.fixture
def job(bootstrap: str, topic: Topics, tmp_path: Path) -> JobSpec:
    return orders(bootstrap, topic(), tmp_path)


def test_bad_records_are_in_quarantine_once_however_often_the_job_restarts(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [GOOD, BROKEN, GOOD, EXTRA])
    run_once(job, spark)
    run_once(job, spark)
    produce(job.log.topics[0], [BROKEN])
    run_once(job, spark)
    assert written(job) == [(0, 0), (0, 2)]
    assert quarantined(job) == [(0, 1), (0, 3), (0, 4)]


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


def test_list_prints_places_that_show_understands(
    job: JobSpec, job_file: Path, spark: SparkSession, produce: Produce
) -> None:
    name = job.log.topics[0]
    produce(name, [BROKEN, b"\xff\x00"], key="k", headers=[("trace", b"7")])
    run_once(job, spark)
    listed = json.loads(penstock("list", str(job_file), "--json").stdout)
    assert listed["rows"] == 2
    assert [each["offset"] for each in listed["newest"]] == [1, 0]
    assert f"{name}/0/1" in penstock("list", str(job_file)).stdout
    shown = penstock("show", str(job_file), f"{name}/0/0").stdout
    assert BROKEN in shown
    assert "trace = (1 B) 7" in shown
    (row,) = json.loads(penstock("show", str(job_file), f"{name}/0/1", "--json").stdout)
    assert (row["key"], row["value"]) == ({"text": "k"}, {"base64": "/wA="})
    assert penstock("show", str(job_file), f"{name}/0/1", "--raw").stdout_bytes == b"\xff\x00"


def test_an_empty_quarantine_says_so_and_a_missing_record_is_the_users_error(
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
