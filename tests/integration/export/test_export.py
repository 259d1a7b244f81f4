"""Mixed event types of one topic into plain Parquet by type and day, read back by other programs."""

from __future__ import annotations

import shutil
from collections import Counter

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.errors import UserError
from tests.support.exports import ExportPipe, event, type_of
from tests.support.kafka import Produce, Topics


def test_every_record_is_in_the_folder_of_its_type_and_utc_day_once(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    export.describe(name)
    sent = [event("ABC"[number % 3], number, day=number % 2) for number in range(30)]
    produce(name, sent[:20], partition=0)
    produce(name, sent[20:], partition=1)
    export.run_to_end()
    result = [(number, str(day)) for number, day in export.rows("A", "id", "day")]
    assert result == [(number, f"2026-03-0{1 + number % 2}") for number in range(0, 30, 3)]
    assert export.everywhere() == Counter([(0, n) for n in range(20)] + [(1, n) for n in range(10)])
    assert export.files("A") == [
        "A/day=2026-03-01/0.18.parquet",
        "A/day=2026-03-01/1.4.parquet",
        "A/day=2026-03-02/0.15.parquet",
        "A/day=2026-03-02/1.7.parquet",
    ]


def test_spark_duckdb_and_polars_read_the_types_as_plain_parquet(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name)
    produce(name, [event("AB"[number % 2], number, day=number // 6) for number in range(12)])
    export.run_to_end()
    place = export.root / "A"
    expected = [(0, "2026-03-01"), (2, "2026-03-01"), (4, "2026-03-01"), (6, "2026-03-02"), (8, "2026-03-02")]
    expected += [(10, "2026-03-02")]
    by_spark = export.spark.read.parquet(str(place)).selectExpr("id", "cast(day as string)").collect()
    by_duckdb = duckdb.sql(
        f"SELECT id, day::VARCHAR FROM read_parquet('{place}/**/*.parquet', hive_partitioning = true)"
    )
    by_polars = pl.scan_parquet(place).select("id", pl.col("day").cast(pl.String)).collect().rows()
    assert sorted((row[0], row[1]) for row in by_spark) == expected
    assert by_duckdb is not None and sorted(by_duckdb.fetchall()) == expected
    assert sorted(by_polars) == expected
    assert penstock.read(export.spark, export.path, type="A").count() == 6
    with pytest.raises(UserError, match="needs a type"):
        penstock.read(export.spark, export.job)


def test_a_second_run_writes_only_what_is_new(export: ExportPipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    export.describe(name)
    produce(name, [event("A", number) for number in range(5)])
    export.run_to_end()
    produce(name, [event("B", number) for number in range(5, 8)])
    export.run_to_end()
    assert export.offsets("A") == [0, 1, 2, 3, 4]
    assert export.offsets("B") == [5, 6, 7]
    assert export.global_positions() == [8]


def test_a_schema_is_inferred_from_the_first_records_and_then_fixed(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, types=[type_of("A", schema="infer")], on="new_column: add")
    produce(name, [event("A", 1, size=4.5), event("A", 2)])
    export.run_to_end()
    assert export.rows("A", "id", "size") == [(1, 4.5), (2, None)]
    produce(name, [event("A", 3, color="red"), event("A", 4, id="four"), event("A", 5, color="blue")])
    export.run_to_end()
    newest = pl.read_parquet(export.root / export.paths("A")[-1])
    assert newest.select("id", "size", "color").rows() == [(3, None, "red"), (5, None, "blue")]
    assert export.quarantined() == [(0, 3)]


def test_lost_logs_stop_the_job_and_are_restored_from_names_and_footers(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    """RULES E6: positions come from the files, and nothing is written twice."""
    name = topic(partitions=2)
    export.describe(name)
    places = produce(name, [event("ABC"[number % 3], number, day=number % 2) for number in range(40)])
    export.run_to_end()
    positions = export.global_positions()
    shutil.rmtree(export.root / "_penstock")
    with pytest.raises(UserError) as refused:
        export.run_to_end()
    assert "penstock rebuild" in refused.value.hint
    done = CliRunner().invoke(app, ["rebuild", str(export.path)])
    assert done.exit_code == 0, done.output
    state = export.state
    assert [state.of(partition).position for partition in sorted(state.partitions)] == positions
    places += produce(name, [event("ABC"[number % 3], number) for number in range(40, 50)])
    export.run_to_end()
    assert export.everywhere() == Counter(places)
