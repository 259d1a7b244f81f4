"""Delta Spark reads our tables as its own and may write to them between runs; Polars and DuckDB read them too."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_table
from penstock.tables.single.table import vacuum
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids

TYPES = (
    'id: long, tiny: byte, small: short, whole: int, ratio: float, share: double, price: "decimal(20,4)", ok: boolean, '
    "text: string, blob: binary, day: date, at: timestamp, tags: [string], "
    'points: [{x: double, y: float}], user: {name: string, visits: {first: date}}, counts: "map<string,long>"'
)
KEYS = {
    "k_string": "string",
    "k_byte": "byte",
    "k_short": "short",
    "k_int": "int",
    "k_long": "long",
    "k_decimal": '"decimal(12,3)"',
    "k_boolean": "boolean",
    "k_date": "date",
    "k_timestamp": "timestamp",
}


@pytest.fixture
def pipe(tmp_path: Path, bootstrap: str, spark: SparkSession) -> Pipe:
    return Pipe(tmp_path, bootstrap, spark)


def read(pipe: Pipe) -> DataFrame:
    """As any reader of Delta reads a job's table."""
    return penstock.read(pipe.spark, pipe.path)


def test_spark_reads_every_column_type_with_the_values_that_were_sent(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    pipe.describe(name, schema=TYPES)
    sent = {
        "id": 2**63 - 1,
        "tiny": -128,
        "small": 32767,
        "whole": -(2**31),
        "ratio": 0.5,
        "share": 0.1,
        "price": "1234567890123456.7891",
        "ok": True,
        "text": "Ünal 🐟\n",
        "blob": "AP8=",
        "day": "2024-02-29",
        "at": "2026-02-28T23:30:00.123456-02:00",
        "tags": ["a", None, ""],
        "points": [{"x": 0.1, "y": 0.5}, None],
        "user": {"name": "u", "visits": {"first": "1969-12-31"}},
        "counts": {"a b": 1, "": None},
    }
    produce(name, [json.dumps(sent), "{}"])
    pipe.run_to_end()
    rows = read(pipe).orderBy("offset")
    assert rows.schema.simpleString() == (
        "struct<id:bigint,tiny:tinyint,small:smallint,whole:int,ratio:float,share:double,price:decimal(20,4),"
        "ok:boolean,text:string,blob:binary,day:date,at:timestamp,tags:array<string>,"
        "points:array<struct<x:double,y:float>>,user:struct<name:string,visits:struct<first:date>>,"
        "counts:map<string,bigint>,partition:int,offset:bigint>"
    )
    full, empty = (row.asDict(recursive=True) for row in rows.collect())
    expected = {
        **sent,
        "price": Decimal("1234567890123456.7891"),
        "blob": bytearray(b"\x00\xff"),
        "day": date(2024, 2, 29),
        "points": [{"x": 0.1, "y": 0.5}, None],
        "user": {"name": "u", "visits": {"first": date(1969, 12, 31)}},
        "partition": 0,
        "offset": 0,
    }
    instant = full.pop("at")
    assert instant.astimezone(UTC) == datetime(2026, 3, 1, 1, 30, 0, 123456, tzinfo=UTC)
    del expected["at"]
    assert full == expected
    assert [value for key, value in empty.items() if key not in ("partition", "offset")] == [None] * len(sent)


def test_a_table_partitioned_by_every_type_that_can_is_pruned_by_spark_to_the_right_rows(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    schema = ", ".join(f"{key}: {kind}" for key, kind in KEYS.items())
    pipe.describe(name, schema=f"id: long, {schema}", partition_by=", ".join(KEYS))
    plain = {
        "k_string": "plain",
        "k_byte": 1,
        "k_short": 2,
        "k_int": -3,
        "k_long": 2**53 + 1,
        "k_decimal": "1.500",
        "k_boolean": False,
        "k_date": "2024-02-29",
        "k_timestamp": "2026-02-28T23:30:00.000001-02:00",
    }
    special = {**dict.fromkeys(KEYS), "k_string": "a b:c%2F/ü=d'\"\\", "k_boolean": True}
    produce(name, [json.dumps({"id": 0, **plain}), json.dumps({"id": 1, **special}), '{"id": 2}', '{"id": 3}'])
    pipe.run_to_end()
    rows = read(pipe)
    assert sorted(rows.inputFiles()) == sorted(set(rows.inputFiles()))
    for condition, expected in {
        "k_string = 'plain'": [0],
        f"k_string = '{'a b:c%2F/ü=d'}\\'\"\\\\'": [1],
        "k_string is null": [2, 3],
        "k_byte = 1": [0],
        "k_short = 2": [0],
        "k_int = -3": [0],
        "k_int is null": [1, 2, 3],
        "k_long = 9007199254740993": [0],
        "k_decimal = 1.5": [0],
        "k_boolean": [1],
        "not k_boolean": [0],
        "k_date = date'2024-02-29'": [0],
        "k_timestamp = timestamp'2026-03-01 01:30:00.000001Z'": [0],
        "k_timestamp is null": [1, 2, 3],
    }.items():
        result = rows.where(condition)
        assert sorted(row["id"] for row in result.select("id").collect()) == expected, condition
        assert len(result.inputFiles()) < len(rows.inputFiles()), condition
    [first] = rows.where("id = 0").collect()
    assert (first["k_decimal"], first["k_date"], first["k_long"]) == (Decimal("1.500"), date(2024, 2, 29), 2**53 + 1)
    by_polars = pl.read_delta(pipe.table).sort("id")
    assert by_polars["k_string"].to_list() == ["plain", special["k_string"], None, None]
    assert by_polars["k_boolean"].to_list() == [False, True, None, None]


def batches(pipe: Pipe, name: str, produce: Produce, count: int = 3) -> None:
    """Ten records in every batch: batch n holds the numbers from 10 n."""
    pipe.describe(
        name,
        schema='id: long, text: string, price: "decimal(9,2)", share: double, at: timestamp, inner: {id: int}',
        partition_by="",
    )
    for batch in range(count):
        produce(name, [record(number) for number in range(10 * batch, 10 * batch + 10)])
        pipe.run_to_end()


def record(number: int) -> str:
    content: dict[str, Any] = {
        "id": number,
        "text": f"t{number:03}" + "x" * 40,
        "price": f"{number}.25",
        "share": number / 4,
        "at": f"2026-01-01T00:{number:02}:00Z",
        "inner": {"id": number},
    }
    return json.dumps(content)


def test_statistics_let_spark_read_only_the_files_that_can_hold_a_row(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    batches(pipe, topic(), produce)
    rows = read(pipe)
    everything = len(rows.inputFiles())
    assert everything >= 3
    for condition in (
        "id = 15",
        f"text = 't015{'x' * 40}'",
        "price = 15.25",
        "share = 3.75",
        "at = timestamp'2026-01-01 00:15:00Z'",
        "inner.id = 15",
        "`offset` = 15",
    ):
        result = rows.where(condition)
        assert [row["id"] for row in result.collect()] == [15], condition
        assert len(result.inputFiles()) == 1, condition
    assert rows.where("id > 1000").inputFiles() == []
    assert rows.where("id is null").inputFiles() == []


def test_spark_travels_in_time_and_shows_our_commits_in_its_history(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    batches(pipe, topic(), produce)
    counts = [
        pipe.spark.read.format("delta").option("versionAsOf", version).load(pipe.table).count()
        for version in range(pipe.version() + 1)
    ]
    # Created, started, then the batches.
    assert counts == [0, 0, 10, 20, 30]
    history = pipe.spark.sql(f"describe history delta.`{pipe.table}`").orderBy("version").collect()
    assert [row["version"] for row in history] == [0, 1, 2, 3, 4]
    assert [row["operation"] for row in history] == ["CREATE TABLE", *["WRITE"] * 4]


def test_compaction_and_vacuum_change_nothing_that_spark_reads(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    batches(pipe, topic(), produce)
    before = sorted(read(pipe).collect())
    table = open_table(pipe.job.table, pipe.job.name)
    compact(table, 1 << 20)
    assert len(read(pipe).inputFiles()) == 1
    assert sorted(read(pipe).collect()) == before
    vacuum(table)
    assert sorted(read(pipe).collect()) == before
    # What the compaction replaced is still there for readers of older versions.
    assert pipe.spark.read.format("delta").option("versionAsOf", 3).load(pipe.table).count() == 20


def test_spark_may_write_between_runs_and_the_job_continues_exactly_once(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    batches(pipe, name, produce, count=2)
    table = f"delta.`{pipe.table}`"
    # With a checkpoint at every commit of Spark our positions have to come through a file that Spark wrote.
    pipe.spark.sql(f"alter table {table} set tblproperties ('delta.checkpointInterval' = '1')")
    pipe.spark.sql(
        f"merge into {table} t using (select 15L as id) s on t.id = s.id when matched then update set t.text = 'merged'"
    )
    pipe.spark.sql(f"optimize {table}")
    produce(name, [record(number) for number in range(20, 30)])
    pipe.run_to_end()
    assert pipe.column("id") == list(range(30))
    assert pipe.rows("text")[15] == ("merged",)
    assert pipe.verified()
    pipe.spark.sql(f"insert into {table} (id) values (-1)")
    pipe.spark.sql(f"alter table {table} add columns (note string)")
    pipe.spark.sql(f"delete from {table} where id = 29")
    produce(name, [record(number) for number in range(30, 40)])
    pipe.run_to_end()
    assert sorted(row["id"] for row in read(pipe).select("id").collect()) == [-1, *range(29), *range(30, 40)]
    assert pipe.positions() == [40]


def test_polars_and_duckdb_read_the_table_too(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name, schema='id: long, price: "decimal(9,2)", day: date', partition_by="day")
    produce(
        name, [f'{{"id": {number}, "price": "{number}.25", "day": "2026-01-0{1 + number % 3}"}}' for number in range(9)]
    )
    produce(name, ids(range(9, 10)))
    pipe.run_to_end()
    frame = pl.read_delta(pipe.table)
    assert frame.filter(pl.col("day") == date(2026, 1, 2)).sort("id")["id"].to_list() == [1, 4, 7]
    rows = frame.to_arrow()
    connection = duckdb.connect()
    summed = connection.execute("select day, count(*), sum(price) from rows group by day order by day nulls last")
    assert summed.fetchall() == [
        (date(2026, 1, 1), 3, Decimal("9.75")),
        (date(2026, 1, 2), 3, Decimal("12.75")),
        (date(2026, 1, 3), 3, Decimal("15.75")),
        (None, 1, None),
    ]
    files = connection.execute(
        f"select count(*), sum(id) from read_parquet('{pipe.table}/day=*/*.pq', hive_partitioning=true)"
    )
    assert files.fetchall() == [(10, 45)]
    assert rows.num_rows == 10


def test_sparks_vacuum_passes_over_the_quarantine_inside_the_table(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, [*ids(range(20)), "no JSON"])
    pipe.describe(name)
    pipe.run_to_end()
    stray = Path(pipe.table, "stray.parquet")
    stray.write_bytes(b"of another writer")
    for path in Path(pipe.table).rglob("*"):
        os.utime(path, (0, 0))
    # By default Delta lists folders with 10,000 tasks.
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, setting in settings.items():
        pipe.spark.conf.set(name, setting)
    try:
        pipe.spark.sql(f"VACUUM delta.`{pipe.table}` RETAIN 0 HOURS")
    finally:
        for name in settings:
            pipe.spark.conf.unset(name)
    assert not stray.exists()
    assert pipe.quarantined("offset") == [(20,)]
    assert pipe.verified()
