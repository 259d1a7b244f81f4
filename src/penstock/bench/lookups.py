"""`bench lookups`: rows by their keys out of a keyed table, by `penstock.read` and by the plain table, files and time.

Measurements of 1,000 devices in the order of time, loaded in several commits, as batches of a topic would bring them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.bench.meters import Say
from penstock.bench.sides import loader, written_job
from penstock.spark.delta_spark import open_delta_spark

DEVICES = 1_000
COMMITS = 20
TRIES = 5
_JOB = """\
job: lookups
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [lookups]}}}}
decode: json
schema: {{device: string, at: long, temperature: double, humidity: double}}
table:
  keyed: {{path: {table}, partition_keys: [device], row_keys: [at]}}
"""
Read = Callable[[SparkSession, str], DataFrame]


@dataclass(frozen=True, slots=True)
class Case:
    """One question, asked with keys, and with a condition on the plain table."""

    name: str
    by_keys: Read
    condition: str


@dataclass(frozen=True, slots=True)
class Answer:
    """How many files were read and how long it took: by keys, and without them."""

    case: str
    rows: int
    files: int
    seconds: float
    plain_files: int
    plain_seconds: float


@dataclass(frozen=True, slots=True)
class Lookups:
    rows: int
    files: int
    answers: tuple[Answer, ...]

    def as_json(self) -> dict[str, Any]:
        return {"bench": "lookups", **asdict(self)}


def bench_lookups(rows: int, say: Say) -> Lookups:
    """Load a table, and ask it."""
    spark = open_delta_spark("bench lookups")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        say(f"loading {rows:,} rows in {COMMITS} commits")
        path = _loaded(spark, Path(folder), rows)
        files = len(spark.read.format("delta").load(path).inputFiles())
        answers = tuple(_answer(spark, path, each, say) for each in _cases(rows // DEVICES))
    spark.stop()
    return Lookups(rows, files, answers)


def _cases(times: int) -> list[Case]:
    device, at = "device-0123", times // 2
    some = f"at >= {at} and at < {at + times // 20}"
    return [
        Case(
            "a row",
            lambda spark, path: penstock.read(spark, path, keys={"device": device, "at": at}),
            f"device = '{device}' and at = {at}",
        ),
        Case(
            "a twentieth of the time of a device",
            lambda spark, path: penstock.read(spark, path, keys={"device": device}).where(some),
            f"device = '{device}' and {some}",
        ),
        Case(
            "a device",
            lambda spark, path: penstock.read(spark, path, keys={"device": device}),
            f"device = '{device}'",
        ),
        Case(
            "a moment of all devices", lambda spark, path: penstock.read(spark, path).where(f"at = {at}"), f"at = {at}"
        ),
    ]


def _answer(spark: SparkSession, path: str, case: Case, say: Say) -> Answer:
    say(f"asking for {case.name}")
    plain = lambda: spark.read.format("delta").load(path).where(case.condition)  # noqa: E731
    rows, files, seconds = _measured(lambda: case.by_keys(spark, path))
    same, plain_files, plain_seconds = _measured(plain)
    if rows != same:
        raise SystemExit(f"{case.name}: {rows} rows by keys, {same} without them")
    return Answer(case.name, rows, files, seconds, plain_files, plain_seconds)


def _measured(ask: Callable[[], DataFrame]) -> tuple[int, int, float]:
    """Rows, files, and the median of several tries after one that warms up."""
    rows = len(ask().collect())
    spent = []
    for _ in range(TRIES):
        started = time.perf_counter()
        ask().collect()
        spent.append(time.perf_counter() - started)
    return rows, len(ask().inputFiles()), round(statistics.median(spent), 3)


def _loaded(spark: SparkSession, folder: Path, rows: int) -> str:
    load = loader(spark, written_job(folder, _JOB.format(table=json.dumps(str(folder / "table")))))
    rng = np.random.default_rng(20260301)
    share = rows // COMMITS
    for commit in range(COMMITS):
        numbers = np.arange(commit * share, (commit + 1) * share)
        file = folder / f"{commit}.parquet"
        pl.DataFrame(
            {
                "device": [f"device-{number:04}" for number in numbers % DEVICES],
                "at": numbers // DEVICES,
                "temperature": rng.uniform(-20, 40, share).round(3),
                "humidity": rng.random(share).round(4),
            }
        ).write_parquet(file)
        load(file)
        file.unlink()
    return str(folder / "table")
