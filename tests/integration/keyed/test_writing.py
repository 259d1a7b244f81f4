"""`penstock.write` and `foreach_batch` on the real Spark: rows of a program in a keyed table, each batch once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from penstock.errors import UserError
from penstock.events import OnLanded
from penstock.watch.verify import Verdict
from tests.support.keyed_tables import Keyed, row

SCHEMA = "device string, number long, value long"
KEYED = "row_keys: [number], delete: gone, buckets: 2"


def job_of(folder: Path, keyed: str = KEYED) -> tuple[Keyed, Path]:
    table = Keyed(folder, keyed)
    assert table.job
    return table, folder / "keyed.yaml"


def values(table: Keyed) -> dict[int, Any]:
    return {number: value for (_, number), value in table.values().items()}


def test_a_data_frame_replaces_rows_by_key_or_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    table, job = job_of(tmp_path)
    frame = spark.range(100).selectExpr("'a' as device", "id as number", "id as value")
    first = penstock.write(frame, job)
    assert (first.rows, first.skipped) == (100, 0) and values(table) == {number: number for number in range(100)}
    penstock.write(frame.where("number < 5").selectExpr("device", "number", "-value as value"), job)
    assert values(table) == {number: -number if number < 5 else number for number in range(100)}
    penstock.write(frame.limit(0), job)
    last = penstock.write(frame.where("number >= 90"), job, mode="overwrite")
    assert values(table) == {number: number for number in range(90, 100)}
    assert last.version == table.table().version
    assert table.verified(values=False).verdict is not Verdict.VIOLATED


def test_records_of_the_log_are_newer_than_written_rows(spark: SparkSession, tmp_path: Path) -> None:
    table, job = job_of(tmp_path)
    table.put(row(1, 10), row(2, None, gone=True))
    table.run()
    written = penstock.write(spark.createDataFrame([("a", 1, 1), ("a", 2, 2), ("a", 3, 3)], SCHEMA), job)
    assert written.skipped == 2 and values(table) == {1: 10, 3: 3}


def test_rows_that_do_not_fit_write_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table, job = job_of(tmp_path)
    penstock.write(spark.createDataFrame([("a", 1, 1)], SCHEMA), job)
    version = table.table().version
    for bad in (
        spark.createDataFrame([("a", 1, 1, 1)], f"{SCHEMA}, other long"),
        spark.createDataFrame([("a", None, 1)], SCHEMA),
    ):
        with pytest.raises(UserError):
            penstock.write(bad, job)
    with pytest.raises(UserError, match="mode 'ignore'"):
        penstock.write(spark.createDataFrame([("a", 1, 1)], SCHEMA), job, mode="ignore")
    assert table.table().version == version


def test_a_streaming_query_that_dies_after_a_commit_writes_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has not noted the batch and brings it again: it is recognised by the query and its number."""
    table, job = job_of(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        rows = [row(key, 10 * number + key) for key in range(number, number + 3)]
        file = source / f"{number}.parquet"
        pl.DataFrame(rows).write_parquet(file)
        # Spark takes files in the order of their times.
        os.utime(file, (1_770_000_000 + number, 1_770_000_000 + number))
    landed: list[tuple[Mapping[str, int], int]] = []

    def die(positions: Mapping[str, int], version: int) -> None:
        raise RuntimeError("killed")

    def note(positions: Mapping[str, int], version: int) -> None:
        landed.append((positions, version))

    def run(on_landed: OnLanded) -> None:
        take = penstock.foreach_batch(job, query="copy", on_landed=on_landed)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException):
        run(die)
    version = table.table().version
    run(note)
    assert [positions["copy"] for positions, _ in landed] == [0, 1, 2]
    assert [at - version for _, at in landed] == [0, 1, 2]
    assert values(table) == {0: 0, 1: 11, 2: 22, 3: 23, 4: 24}
