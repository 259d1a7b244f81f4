"""A job whose names differ from the table's only in case writes to the table's columns, from Kafka to every reader."""

from __future__ import annotations

import polars as pl
from deltalake import DeltaTable

from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_table
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe


def test_columns_fields_and_partitions_keep_the_spelling_of_the_table(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1, "userid": 7, "meta": {"at": "x", "n": 1}, "DAY": "d1"}'])
    pipe.describe(name, schema="id: long, userid: long, meta: {at: string, n: long}, DAY: string", partition_by="DAY")
    pipe.run_to_end()
    produce(name, ['{"id": 2, "userId": 8, "meta": {"N": 2, "At": "y", "more": true}, "Day": "d2"}'])
    pipe.describe(
        name,
        schema="Day: string, id: long, userId: long, meta: {N: long, At: string}",
        partition_by="Day",
        columns="Tag: concat(meta.At)",
    )
    pipe.run_to_end()
    compact(open_table(pipe.job.table, pipe.job.name), 1024**2)
    expected = [
        {"id": 1, "userid": 7, "meta": {"at": "x", "n": 1, "more": None}, "DAY": "d1", "Tag": None},
        {"id": 2, "userid": 8, "meta": {"at": "y", "n": 2, "more": True}, "DAY": "d2", "Tag": "y"},
    ]
    names = list(expected[0])
    assert pl.read_delta(pipe.table).sort("id").select(names).to_dicts() == expected
    spark = pipe.spark.read.format("delta").load(pipe.table).orderBy("id").select(*names).collect()
    assert [row.asDict(recursive=True) for row in spark] == expected
    assert DeltaTable(pipe.table).metadata().partition_columns == ["DAY"]
    assert pipe.totals().quarantined == 0
    assert pipe.verified()


def test_an_sql_projection_and_offset_columns_may_spell_names_otherwise(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ['{"id": 1, "userid": 7}'])
    pipe.describe(name, schema="id: long, userid: long")
    pipe.run_to_end()
    produce(name, ['{"id": 2, "userid": 8}'])
    select = "[id, userid + 0 as userId, partition as Partition, offset as OFFSET]"
    pipe.describe(name, schema="id: long, userid: long", sql=f"select: {select}")
    pipe.run_to_end()
    assert pipe.rows("id", "userid", "offset") == [(1, 7, 0), (2, 8, 1)]
    assert pipe.verified()
