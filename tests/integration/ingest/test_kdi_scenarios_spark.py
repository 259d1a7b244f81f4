"""The scenarios of kafka-delta-ingest's own tests, each with the outcome that its users were promised."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids


def files_of(table: str) -> list[tuple[str | None, str, int, int, int]]:
    """Color, path, rows, smallest and largest id of every file, from the table's log."""
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    columns = ("partition.color", "path", "num_records", "min.id", "max.id")
    return sorted(
        zip(*(actions.column(name).to_pylist() for name in columns), strict=True), key=lambda item: str(item[1])
    )


def test_earliest_takes_what_was_there_before(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(3)
    for number in range(3):
        produce(name, ids(range(number * 10, number * 10 + 10)), partition=number)
    pipe.describe(name, kafka="start: earliest")
    pipe.run_to_end()
    assert pipe.column("id") == list(range(30))


def test_latest_takes_only_what_comes_afterwards(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(1, 6)))
    pipe.describe(name, kafka="start: latest")
    pipe.run_to_end()
    produce(name, ids(range(6, 17)))
    pipe.run_to_end()
    assert pipe.column("id") == list(range(6, 17))


def test_a_column_that_another_added_while_the_job_runs_is_filled_from_then_on(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1}'])
    pipe.describe(name, on="new_column: quarantine")
    with pipe.opened() as pipeline:
        pipeline.round(flush_now=True)
        DeltaTable(pipe.table).alter.add_columns([Field("color", PrimitiveType("string"))])
        produce(name, ['{"id": 2, "color": "red"}', '{"id": 3, "color": "blue"}'])
        pipeline.round(flush_now=True)
    assert pipe.rows("id", "color") == [(1, None), (2, "red"), (3, "blue")]


def test_partitions_red_blue_and_null_have_their_folders_counts_and_bounds(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    pipe.describe(name, schema="id: long, color: string", partition_by="color")
    for colors in ((("red", 1), ("red", 2), ("blue", 3)), (("blue", 5), (None, 7), (None, 6), ("red", 4))):
        produce(name, [json.dumps({"id": number, "color": color}) for color, number in colors])
        pipe.run_to_end()
    files = files_of(pipe.table)
    held: dict[str | None, list[int]] = {"red": [], "blue": [], None: []}
    for color, path, rows, low, high in files:
        assert path.startswith(f"color={color or '__HIVE_DEFAULT_PARTITION__'}/")
        result = pl.read_parquet(Path(pipe.table) / path, hive_partitioning=False)["id"].to_list()
        assert (rows, low, high) == (len(result), min(result), max(result))
        held[color] += result
    assert {color: sorted(result) for color, result in held.items()} == {"red": [1, 2, 4], "blue": [3, 5], None: [6, 7]}
    again = DeltaTable(pipe.table)
    again.create_checkpoint()
    assert DeltaTable(pipe.table).version() == again.version() == pipe.version()
    assert files_of(pipe.table) == files
    spark_rows = pipe.spark.read.format("delta").load(pipe.table).groupBy("color").count().collect()
    assert {row["color"]: row["count"] for row in spark_rows} == {"red": 3, "blue": 2, None: 2}
