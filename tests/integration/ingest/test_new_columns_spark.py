"""Fields that the table does not have: `on.new_column: add | quarantine | ignore`, from Kafka to the table."""

from __future__ import annotations

from typing import Any

import polars as pl

from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_table
from penstock.lake.state import Totals
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids

RED = '{"id": 2, "color": "red"}'


def test_add_gives_the_table_the_column_and_earlier_rows_have_null(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name, on="new_column: add")
    produce(name, ids(range(1, 2)))
    pipe.run_to_end()
    produce(name, [RED, '{"id": 3}', '{"id": 4, "color": null}'])
    recorder = pipe.run_to_end()
    assert pipe.rows("id", "color") == [(1, None), (2, "red"), (3, None), (4, None)]
    assert [item["columns"] for item in recorder.named("columns added")] == [["color"]]
    assert pipe.totals() == Totals(read=4, written=4)
    produce(name, ['{"id": 5, "color": "blue"}', '{"id": 6, "color": 7}'])
    pipe.run_to_end()
    assert pipe.rows("id", "color")[4:] == [(5, "blue")]
    assert pipe.quarantined() == [(0, 5)]
    assert pipe.verified()


def test_a_struct_of_several_shapes_is_one_struct_and_grows_with_later_batches(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, ['{"id": 1, "place": {"city": "Bern"}}'], partition=0)
    produce(name, ['{"id": 2, "place": {"zip": 3000, "spots": [{"x": 1}]}}'], partition=1)
    pipe.describe(name, on="new_column: add")
    pipe.run_to_end()
    produce(name, ['{"id": 3, "place": {"zip": 3001, "spots": [{"x": 2, "y": 0.5}], "land": {"code": "CH"}}}'])
    recorder = pipe.run_to_end()
    assert [item["columns"] for item in recorder.named("columns added")][-1] == ["place.spots.y", "place.land"]
    produce(
        name, ['{"id": 4, "place": {"City": "Thun"}}', '{"id": 5, "Color": 1}', '{"id": 6, "color": 1, "Color": 2}']
    )
    pipe.run_to_end()
    compact(open_table(pipe.job.table, pipe.job.name), 1024**2)
    expected = [
        (1, "Bern", None, None, None),
        (2, None, 3000, [(1, None)], None),
        (3, None, 3001, [(2, 0.5)], "CH"),
        (5, None, None, None, None),
    ]
    frame = pipe.spark.read.format("delta").load(pipe.table).orderBy("id")
    rows = frame.select("id", "place.city", "place.zip", "place.spots", "place.land.code").collect()
    assert [(*row[:3], row[3] and [tuple(spot) for spot in row[3]], row[4]) for row in rows] == expected
    read = [(row["id"], row["place"] or dict.fromkeys(("city", "zip", "spots", "land"))) for row in rows_of(pipe)]
    assert [
        (
            number,
            place["city"],
            place["zip"],
            place["spots"] and [tuple(spot.values()) for spot in place["spots"]],
            place["land"] and place["land"]["code"],
        )
        for number, place in read
    ] == expected
    assert sorted(error for (error,) in pipe.quarantined("error")) == [
        "color: differs only in case from the column Color",
        "place.City: differs only in case from the column city",
    ]
    assert pipe.verified()


def rows_of(pipe: Pipe) -> list[dict[str, Any]]:
    return pl.read_delta(pipe.table).sort("id").to_dicts()
