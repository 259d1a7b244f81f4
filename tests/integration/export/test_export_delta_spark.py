"""The same export with `format: delta`: a Delta table per type, each with its own position (RULES E1, E2)."""

from __future__ import annotations

from collections import Counter

import polars as pl

import penstock
from penstock.watch.verify import verify
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Produce, Topics


def offsets_of(export: ExportPipe, *names: str) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) is in the tables of these types."""
    counter: Counter[tuple[int, int]] = Counter()
    for name in names:
        counter.update(pl.read_delta(str(export.root / name)).select("kafka_partition", "kafka_offset").rows())
    return counter


def test_each_type_is_a_delta_table_by_day_that_delta_spark_reads(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    export.describe(name, export="format: delta")
    places = produce(name, [event("ABC"[number % 3], number, day=number // 10) for number in range(30)])
    export.run_to_end()
    assert offsets_of(export, "A", "B", "C") == Counter(places)
    rows = penstock.read(export.spark, export.job, type="A")
    result = rows.selectExpr("id", "cast(day as string)").orderBy("id").collect()
    assert [(row[0], row[1]) for row in result] == [(n, f"2026-03-0{1 + n // 10}") for n in range(0, 30, 3)]
    assert verify(export.job).ok


def test_a_type_whose_table_cannot_be_written_falls_behind_alone_and_catches_up(
    export: ExportPipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    export.describe(name, export="format: delta")
    export.root.mkdir()
    (export.root / "A").write_text("in the way")
    produce(name, [event("AB"[number % 2], number) for number in range(6)])
    with export.opened() as pipeline:
        pipeline.round()
        assert offsets_of(export, "B") == Counter((0, number) for number in (1, 3, 5))
        assert export.global_positions() == [0]
    (export.root / "A").unlink()
    export.run_to_end()
    assert offsets_of(export, "A") == Counter((0, number) for number in (0, 2, 4))
    assert export.global_positions() == [6]
