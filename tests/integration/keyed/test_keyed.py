"""A keyed table on the real Kafka and Spark: with `sql:`, with two processes, and read by other engines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.tables.kind import CompactRequest, Loading, SaveMode, VacuumRequest
from penstock.tables.registry import kind_of, load_job
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.support.change_data import ChangeData, documented_job
from tests.support.kafka import Produce, Topics
from tests.support.keyed_tables import Keyed
from tests.support.pipes import run_in_process
from tests.support.processes import penstock

JOB = """\
job: keyed
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
schema: {{device: string, at: timestamp, celsius: double, gone: boolean, seq: long}}
sql:
  select:
    - nullif(device, 'unknown') as device
    - at
    - celsius * 1.8 + 32 as fahrenheit
    - coalesce(gone, false) as gone
    - seq
  where: device <> 'test'
table:
  keyed:
    path: "{path}"
    partition_keys: [device]
    row_keys: [at]
    sequence: seq
    delete: gone
    buckets: 2
"""


def record(device: str | None, second: int, celsius: float, seq: int, **more: object) -> str:
    return json.dumps(
        {"device": device, "at": f"2026-03-01T00:00:{second:02}Z", "celsius": celsius, "seq": seq, **more}
    )


def loaded(job: Path, folder: Path) -> dict[str, Any]:
    """The output of `penstock load`, in a process of its own, because it stops its Spark session."""
    with penstock("load", str(job), str(folder), "--json") as process:
        output = process.rest()
        assert process.exit_code() == 0, process.last_words
    return output[-1]


def test_rows_of_a_projection_are_merged_and_read_by_every_engine(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name, table = topic(partitions=2), tmp_path / "table"
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(bootstrap=bootstrap, topic=name, path=table))
    produce(name, [record("a", second, second, 1) for second in range(10)])
    produce(name, [record("test", 1, 1.0, 1), record(None, 2, 2.0, 1), "{", None, record("unknown", 3, 3.0, 1)])
    run_in_process(job, spark)
    produce(name, [record("a", 3, 100.0, 2), record("a", 4, 0.0, 2, gone=True), record("a", 5, 50.0, 0)])
    run_in_process(job, spark)
    expected = {second: second * 1.8 + 32 for second in range(10) if second != 4} | {3: 212.0}
    query = "select date_part('second', \"at\"), fahrenheit from {} where device = 'a'"
    by_polars = pl.read_delta(str(table)).select(pl.col("at").dt.second(), "fahrenheit").rows()
    shown = spark.read.format("delta").load(str(table))
    shown.createOrReplaceTempView("keyed_rows")
    by_spark = [(int(row[0]), row[1]) for row in spark.sql(query.format("keyed_rows").replace('"', "`")).collect()]
    other = duckdb.connect().register("keyed_rows", pl.read_delta(str(table)).to_arrow())
    by_duckdb = [(int(at), value) for at, value in other.execute(query.format("keyed_rows")).fetchall()]
    for rows_read in (by_polars, by_spark, by_duckdb):
        assert len(rows_read) == len(expected)
        assert {at: round(value, 6) for at, value in rows_read} == {at: round(it, 6) for at, it in expected.items()}
    # `where` drops a row without a device; quarantined: a bad record, a tombstone, and one whose key `sql:` made null.
    spec = load_job(job)
    output = status(spec).as_json()
    totals = {
        text: sum(part[text] for part in output["partitions"]) for text in ("read", "written", "filtered", "skipped")
    }
    assert totals == {"read": 18, "written": 12, "filtered": 2, "skipped": 1}
    assert (output["quarantine_rows"], output["keyed"]["rows"]) == (3, 9)
    kind_of(spec).compact(spec, CompactRequest(), Environment(), None)
    kind_of(spec).vacuum(spec, VacuumRequest(), Environment())
    assert len(pl.read_delta(str(table))) == 9


def test_change_data_of_debezium_is_a_copy_of_its_table(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    """The job file of the documentation, on a real topic with two partitions."""
    name, path = topic(partitions=2), tmp_path / "customers"
    job = tmp_path / "customers.yaml"
    job.write_text(documented_job(bootstrap, name, str(path), wrapped=False))
    database = ChangeData(random.Random(11))
    for _ in range(2):
        for key, value in database.changes(60):
            produce(name, [value], key=key, partition=int(json.loads(key)["id"]) % 2)
        run_in_process(job, spark)
    result = {item["id"]: item for item in pl.read_delta(str(path)).select("id", "name", "email").to_dicts()}
    assert result == database.rows and database.late_reads and database.tombstones
    assert verify(load_job(job)).ok


def test_files_are_loaded_once_by_the_command(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    job = tmp_path / "job.yaml"
    text = JOB.format(bootstrap=bootstrap, topic=topic(), path=tmp_path / "table")
    head, _, tail = text.partition("sql:\n")
    job.write_text(head + tail[tail.index("table:") :])
    rows = pl.DataFrame({"device": ["a", "a", "b"], "celsius": [1.0, 2.0, 3.0], "seq": [1, 2, 1]})
    times = pl.Series("at", ["2026-03-01", "2026-03-01", "2026-03-02"]).str.to_datetime(time_zone="UTC")
    (tmp_path / "in").mkdir()
    rows.with_columns(times).write_parquet(tmp_path / "in" / "rows.parquet")
    result = loaded(job, tmp_path / "in")
    assert (result["files"], result["rows"], result["skipped"]) == (1, 3, 1)
    spec = load_job(job)
    kind = kind_of(spec)
    assert isinstance(kind, Loading)
    again = kind.load(spec, [str(tmp_path / "in")], SaveMode.APPEND, spark, Environment()).as_json()
    assert (again["files"], again["files_known"]) == (0, 1)
    assert sorted(pl.read_delta(str(tmp_path / "table"))["celsius"].to_list()) == [2.0, 3.0]


def test_a_job_whose_sql_selects_columns_loads_those_of_its_table(tmp_path: Path, spark: SparkSession) -> None:
    """Files have the computed columns already: no expression is applied a second time."""
    more = "sql: {select: [device, number, lower(text) AS shout]}"
    schema, keys = "device: string, number: long, text: string", "row_keys: [device, number]"
    table = Keyed(tmp_path, keys, schema, columns="shout: upper(text)", more=more)
    pl.DataFrame({"device": ["a"], "number": [1], "shout": ["As it is"]}).write_parquet(tmp_path / "a.parquet")
    kind = kind_of(table.job)
    assert isinstance(kind, Loading)
    kind.load(table.job, [str(tmp_path / "a.parquet")], SaveMode.APPEND, spark, Environment())
    assert [row["shout"] for row in table.rows()] == ["As it is"]
