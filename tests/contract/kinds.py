"""Jobs of every kind of table over a log in memory, and how the rows of each are read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from penstock.claims import Claims
from penstock.engine.round import Rounds, Waiting, open_rounds
from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.tables.export.logs import type_totals
from penstock.tables.registry import load_job
from tests.contract.toy import ToyTable
from tests.scenarios.local_spark import local_session
from tests.support.memory_log import MemoryLog, MemoryRecord

ZERO, ONE = Partition("events", "id-1", 0), Partition("events", "id-1", 1)
ROUNDS_MAX = 50
Place = tuple[int, int]
"""Partition and offset."""

FRAME = """\
job: contract
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [events]}}}}
decode: json
columns: {{kafka_partition: kafka.partition, kafka_offset: kafka.offset}}
on: {{bad_share: 1}}
"""
TOY = FRAME + "schema: {{type: string, id: long}}\ntable: {{toy: {{path: '{path}'}}}}\n"
DELTA = FRAME + "schema: {{type: string, id: long}}\ntable: {{delta: {{path: '{path}'}}}}\n"
KEYED = (
    FRAME
    + "schema: {{type: string, id: long}}\n"
    + "table: {{keyed: {{path: '{path}', partition_keys: [kafka_partition], row_keys: [id], buckets: 3}}}}\n"
)
EXPORT = (
    FRAME
    + "route: {{by: field(type)}}\n"
    + "types:\n  A: {{schema: {{type: string, id: long}}, event_time: kafka.timestamp}}\n"
    + "  B: {{schema: {{type: string, id: long}}, event_time: kafka.timestamp}}\n"
    + "table: {{export: {{path: '{path}', format: {format}}}}}\n"
)
ROLLUP = """\
job: contract
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [events]}}}}
decode: telegraf
table: {{rollup: {{path: '{path}'}}}}
"""
MADE_AT = 1_770_000_000.0


def record(partition: Partition, number: int) -> MemoryRecord:
    """One of two types in turn."""
    return MemoryRecord(json.dumps({"type": "AB"[number % 2], "id": number}).encode(), at=MADE_AT)


def point(partition: Partition, number: int) -> MemoryRecord:
    """Alone in its series and window: the metric holds the partition, the value the offset."""
    content = {"name": "p", "fields": {str(partition.number): number}, "timestamp": int(MADE_AT) + 60 * number}
    return MemoryRecord(json.dumps(content).encode(), at=MADE_AT)


def totals_of_table(table: Any, partition: Partition) -> Totals:
    totals: Totals = table.state([partition]).of(partition).totals
    return totals


def totals_of_export(table: Any, partition: Partition) -> Totals:
    """The job log counts the records that were read, the logs of the types their rows."""
    return totals_of_table(table, partition) + type_totals(table.logs, partition)


@dataclass(slots=True)
class Subject:
    """One job of some kind, its log, and its rows."""

    job: JobSpec
    read: Callable[[], list[Place]]
    log: MemoryLog = field(default_factory=lambda: MemoryLog({ZERO: {}, ONE: {}}))
    content: Callable[[Partition, int], MemoryRecord] = record
    totals: Callable[[Any, Partition], Totals] = totals_of_table

    def fill(self, count: int = 6) -> None:
        for item in (ZERO, ONE):
            start = self.log.bounds([item])[item].end
            self.log.append(item, *(self.content(item, number) for number in range(start, start + count)))

    def open(
        self, environment: Environment | None = None, claims: Claims | None = None, spark: SparkSession | None = None
    ) -> Rounds[Any]:
        spark = local_session() if spark is None else spark
        return open_rounds(self.job, spark, environment, claims, lambda job: self.log.view(job.log))

    def run(
        self, environment: Environment | None = None, claims: Claims | None = None, spark: SparkSession | None = None
    ) -> Rounds[Any]:
        """Rounds until nothing waits."""
        rounds = self.open(environment, claims, spark)
        for _ in range(ROUNDS_MAX):
            result = rounds.round(flush_now=True)
            if isinstance(result, Waiting) and result.done:
                return rounds
        raise AssertionError("there was always something due")

    @property
    def expected(self) -> list[Place]:
        return sorted((key.number, offset) for key, values in self.log.values.items() for offset in values)


def toy(folder: Path) -> Subject:
    """Loaded like any other: the registry must know the kind."""
    job = loaded(folder, TOY)
    return Subject(job, lambda: sorted((row[1], row[2]) for row in ToyTable(job, Environment()).rows()))


def delta(folder: Path) -> Subject:
    return Subject(loaded(folder, DELTA), lambda: _places(pl.read_delta(str(folder / "table"))))


def keyed(folder: Path) -> Subject:
    return Subject(loaded(folder, KEYED), lambda: _places(pl.read_delta(str(folder / "table"))))


def export(folder: Path) -> Subject:
    def read() -> list[Place]:
        files = sorted((folder / "table").glob("[AB]/day=*/*.parquet"))
        return sorted(place for file in files for place in _places(pl.read_parquet(file)))

    return Subject(loaded(folder, EXPORT, format="parquet"), read, totals=totals_of_export)


def export_as_delta(folder: Path) -> Subject:
    def read() -> list[Place]:
        there = [text for text in ("A", "B") if (folder / "table" / text / "_delta_log").exists()]
        return sorted(place for name in there for place in _places(pl.read_delta(str(folder / "table" / name))))

    return Subject(loaded(folder, EXPORT, format="delta"), read, totals=totals_of_export)


def rollup(folder: Path) -> Subject:
    """Its rows hold no offsets: a point carries them, so that a row with one point identifies its record."""

    def read() -> list[Place]:
        partials = pl.read_delta(str(folder / "table_partials"))
        assert (partials["count"] == 1).all(), "a record is there twice"
        return sorted((int(row["metric"].removeprefix("p.")), int(row["sum"])) for row in partials.to_dicts())

    return Subject(loaded(folder, ROLLUP), read, content=point)


KINDS_TRIED: dict[str, Callable[[Path], Subject]] = {
    "toy": toy,
    "delta": delta,
    "keyed": keyed,
    "export": export,
    "export as Delta": export_as_delta,
    "rollup": rollup,
}


def replaced_policy(job: JobSpec, **policies: Any) -> JobSpec:
    """The same job with other values of its `on` section."""
    return replace(job, on=replace(job.on, **policies))


def loaded(folder: Path, text: str, **values: str) -> JobSpec:
    path = folder / "job.yaml"
    path.write_text(text.format(path=folder / "table", **values))
    return load_job(path)


def _places(frame: pl.DataFrame) -> list[Place]:
    return sorted(frame.select("kafka_partition", "kafka_offset").rows())
