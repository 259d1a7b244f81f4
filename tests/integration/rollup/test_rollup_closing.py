"""Closes of a rollup on a real Spark, and what Spark's readers see of closed and of open windows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvariantError, TransientError
from penstock.lake.delta.files import active_files
from penstock.reading import read
from penstock.tables.kind import ReadRequest
from penstock.tables.rollup import closing
from penstock.tables.rollup.kind import RollupKind
from penstock.tables.rollup.spec import Aggregates
from tests.support.full_disk import file_size_limit, spark_workers
from tests.support.pipes import once_at
from tests.unit.tables.rollup.rollup_lake import HOUR, MINUTE, TEN_MINUTES, Point, RollupLake

HOSTS = [f"host-{number}" for number in range(20)]


def windows_of(frame: DataFrame, *columns: str) -> dict[tuple[str, str, int], tuple[object, ...]]:
    rows = frame.where("tags['host'] <> 'clock'").selectExpr("*", "unix_millis(window_start) at", "tags['host'] host")
    result = [(item["interval"], item["host"], item["at"]) for item in rows.collect()]
    assert len(set(result)) == len(result)
    return {key: tuple(row[name] for name in columns) for key, row in zip(result, rows.collect(), strict=True)}


def threads_of_workers(spark: SparkSession) -> int:
    """The number of threads of Polars in a new Python worker; workers of tests are forked with Polars loaded."""

    def thread_count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([int(os.environ["POLARS_MAX_THREADS"])])], ["threads"])

    return int(spark.range(0, 1, 1, 1).mapInArrow(thread_count, "threads long").collect()[0]["threads"])


def test_a_worker_has_one_polars_thread_regardless_of_cores(spark: SparkSession) -> None:
    assert threads_of_workers(spark) == 1


def test_spark_closes_and_updates_windows_and_shows_those_that_are_open(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "TASK_ROWS_MIN", 8)
    lake = RollupLake(
        tmp_path,
        (MINUTE, TEN_MINUTES),
        spark=spark,
        late="update",
        update_grace_ms=HOUR.millis,
        aggregates=Aggregates(ends=True, mean=True),
    )
    for at in (0, 30_000):
        lake.land([Point(host, at, 1.0) for host in HOSTS])
    lake.close_all(60_000)
    lake.land([Point(host, 15_000, 4.0) for host in HOSTS[:5]])
    lake.land([Point(host, 70_000, 2.0) for host in HOSTS])
    lake.close_all(120_000)
    assert windows_of(
        RollupKind().read(lake.job, spark, ReadRequest()), "sum", "first", "last", "mean", "revision"
    ) == {
        **{("1m", host, 0): (6.0, 1.0, 1.0, 2.0, 1) for host in HOSTS[:5]},
        **{("1m", host, 0): (2.0, 1.0, 1.0, 1.0, 0) for host in HOSTS[5:]},
        **{("1m", host, 60_000): (2.0, 2.0, 2.0, 2.0, 0) for host in HOSTS},
    }
    lake.close_all(600_000)
    assert windows_of(read(spark, lake.job), "count")["10m", "host-0", 0] == (4,)


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
from penstock.errors import UserError
from penstock.reading import read

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    read(spark, sys.argv[1])
except UserError as error:
    print(error.primary, "|", error.hint)
"""


def test_a_session_without_delta_gets_an_error_with_the_setting_to_add(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0)])
    job = tmp_path / "rollups.yaml"
    job.write_text(
        "job: rollups\n"
        "log: {kafka: {bootstrap: 'nowhere:9092', topics: [metrics]}}\n"
        "decode: telegraf\n"
        f"table: {{rollup: {{path: {tmp_path}/rollups, windows: [1m]}}}}\n"
    )
    ran = subprocess.run([sys.executable, "-c", PLAIN_SESSION, str(job)], capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("this Spark session does not know Delta | start Spark with"), ran.stderr


def test_an_error_of_a_task_keeps_its_type_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A file of partials is damaged: no close may complete without it."""
    lake = RollupLake(tmp_path, spark=spark)
    lake.land([Point("a", 0, 1.0), Point("clock", 60_000, 0.0)])
    (file,) = active_files(lake.partials.handle)
    (tmp_path / "rollups_partials" / file.path).write_bytes(b"no Parquet" * 100)
    with pytest.raises(InvariantError, match="cannot read"):
        lake.work()
    assert lake.number("closed") == 0


def test_a_full_disk_during_a_close_or_its_commit_loses_no_window(spark: SparkSession, tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, spark=spark)
    lake.land([Point(host, 0, 1.0) for host in HOSTS])
    lake.land([Point("clock", 60_000, 0.0)])
    threads_of_workers(spark)
    with file_size_limit(spark_workers(), size_bytes=100), pytest.raises(TransientError, match="no space left"):
        lake.work()
    with file_size_limit([os.getpid()], 0, later=True) as fill, pytest.raises(TransientError, match="no space left"):
        lake.work(lake.another_process(at_step=once_at("close_staged", fill)))
    assert (lake.number("close"), lake.number("closed")) == (1, 0), "begun, and still to be done"
    lake.work(lake.another_process())
    assert windows_of(RollupKind().read(lake.job, spark, ReadRequest()), "count", "revision") == {
        ("1m", host, 0): (1, 0) for host in HOSTS
    }
