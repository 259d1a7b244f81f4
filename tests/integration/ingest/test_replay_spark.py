"""Quarantined records after the job is fixed: in the table once, whatever happens on the way (RULES Q2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.engine.replay import ReplayReport, replay
from penstock.job.spec import JobSpec, SqlSpec
from penstock.job.sql_text import parse_expression as parse
from penstock.lake.state import Totals
from tests.support.kafka import Produce, Topics
from tests.support.quarantined import (
    BROKEN,
    EXTRA,
    GOOD,
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
    # One test sends a record that is years old: retention by time would take it before it is read.
    return orders(bootstrap, topic(config={"retention.ms": "-1"}), tmp_path)


def test_after_a_fixed_schema_records_that_fit_are_in_the_table_once_and_the_rest_stays(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [GOOD, EXTRA, BROKEN, EXTRA])
    run_once(job, spark)
    assert replay(with_extra_column(job), spark=spark) == ReplayReport(runs=1, replayed=2, still_bad=1, remaining=1)
    assert written(job) == [(0, 0), (0, 1), (0, 3)]
    assert quarantined(job) == [(0, 2)]
    extras = pl.read_delta(job.table.path).sort("offset")["extra"].to_list()
    assert extras == [None, "x", "x"]
    assert totals(with_extra_column(job), spark) == Totals(read=4, written=1, quarantined=3, replayed=2)


def test_records_that_the_row_filter_drops_stay_in_quarantine(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA, '{"id": 5, "extra": "keep"}', BROKEN])
    run_once(job, spark)
    keeping = replace(with_extra_column(job), sql=SqlSpec(where="extra = 'keep'"))
    assert replay(keeping, spark=spark) == ReplayReport(runs=1, replayed=1, still_bad=1, filtered=1, remaining=2)
    assert written(job) == [(0, 1)]
    assert quarantined(job) == [(0, 0), (0, 2)]


def test_a_record_that_still_fails_stays_in_quarantine_and_the_others_land(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], ['{"id": 7, "extra": "x"}', EXTRA, '{"id": 8, "extra": "y"}'])
    run_once(job, spark)
    dividing = replace(with_extra_column(job), sql=SqlSpec(where="10 div (id - 2) > 0"))
    assert replay(dividing, spark=spark) == ReplayReport(runs=1, replayed=2, still_bad=1, remaining=1)
    assert written(job) == [(0, 0), (0, 2)]
    assert quarantined(job) == [(0, 1)]


def test_key_headers_and_timestamp_are_as_kafka_had_them(job: JobSpec, spark: SparkSession, produce: Produce) -> None:
    produce(job.log.topics[0], [EXTRA], key=b"\xff", headers=[("a", b"1"), ("b", None)], timestamp_ms=1_700_000_000_000)
    run_once(job, spark)
    more = {"key": parse("kafka.key"), "at": parse("kafka.timestamp"), "headers": parse("kafka.headers")}
    replay(replace(with_extra_column(job), columns={**job.columns, **more}), spark=spark)
    (row,) = stored_rows(job)
    assert row["key"] == b"\xff"
    assert row["at"].timestamp() == 1_700_000_000
    assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]


def stored_rows(job: JobSpec) -> list[dict[str, Any]]:
    """Polars reads no maps: Parquet alone, whose partition columns this job does not have."""
    data, _ = tables(job)
    (path,) = data.handle.file_uris()
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
