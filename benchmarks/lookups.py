"""`bench lookups`: rows by their keys out of a keyed table, by `penstock.read` and by the plain table, files and time.

Measurements of 1,000 devices in the order of time, loaded in several commits, as batches of a topic would bring them;
and the same table with a fifth of the rows replaced, which are marked as deleted in their files. All are asked in turn.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import penstock
from benchmarks.keyed.measurements import DEVICES, rows_of
from benchmarks.meters import Report
from benchmarks.sides import loader, written_job
from penstock.spark.delta_spark import open_delta_spark

COMMITS = 20
MARKED_SHARE = 0.2
MARKING_COMMITS = 4
"""So many that each replaces few rows of a file, which are marked."""
SEED = 20260303
TRIES = 11
_JOB = """\
job: lookups
log: {{kafka: {{bootstrap: "nowhere:9092", topics: [lookups]}}}}
decode: json
schema: {{device: string, at: long, temperature: double, humidity: double}}
table:
  keyed: {{path: {table}, partition_keys: [device], row_keys: [at]}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One question: keys and a condition, which are one condition on the plain table."""

    name: str
    keys: dict[str, str | int]
    where: str = "true"

    @property
    def condition(self) -> str:
        return " and ".join([*(f"{name} = {value!r}" for name, value in self.keys.items()), self.where])


@dataclass(frozen=True, slots=True)
class Answer:
    """How many files were read and how long it took: by keys, without them, and by keys with marked rows."""

    case: str
    rows: int
    files: int
    seconds: float
    plain_files: int
    plain_seconds: float
    marked_files: int
    marked_seconds: float


def bench_lookups(rows: int, report: Report) -> tuple[int, list[Answer]]:
    """Load a table, and ask it; how many files it has, and the answers."""
    spark = open_delta_spark("bench lookups")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        report(f"loading {rows:,} rows in {COMMITS} commits")
        load = loader(spark, written_job(Path(folder), _JOB.format(table=json.dumps(f"{folder}/table"))))
        path = _loaded(load, Path(folder), rows)
        files = len(spark.read.format("delta").load(path).inputFiles())
        unmarked = shutil.copytree(path, f"{path}-unmarked")
        report(f"replacing {MARKED_SHARE:.0%} of the rows")
        _replace_some(load, Path(folder), rows)
        answers = [_answer(spark, unmarked, path, case, report) for case in _cases(rows // DEVICES)]
    spark.stop()
    return files, answers


def _cases(times: int) -> list[Case]:
    device, at = "device-0123", times // 2
    return [
        Case("a row", {"device": device, "at": at}),
        Case("a twentieth of the time of a device", {"device": device}, f"at >= {at} and at < {at + times // 20}"),
        Case("a device", {"device": device}),
        Case("a moment of all devices", {}, f"at = {at}"),
    ]


def _answer(spark: SparkSession, unmarked: str, marked: str, case: Case, report: Report) -> Answer:
    report(f"asking for {case.name}")
    ways: list[Callable[[], DataFrame]] = [
        lambda: penstock.read(spark, unmarked, keys=case.keys).where(case.where),
        lambda: spark.read.format("delta").load(unmarked).where(case.condition),
        lambda: penstock.read(spark, marked, keys=case.keys).where(case.where),
    ]
    # The first answers warm up.
    rows = [len(ask().collect()) for ask in ways]
    if len(set(rows)) > 1:
        raise SystemExit(f"{case.name}: {rows} rows by keys, without them, and by keys with marked rows")
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(TRIES):
        for ask, times in zip(ways, spent, strict=True):
            started = time.perf_counter()
            ask().collect()
            times.append(time.perf_counter() - started)
    files = [len(ask().inputFiles()) for ask in ways]
    seconds = [round(statistics.median(times), 3) for times in spent]
    return Answer(case.name, rows[0], files[0], seconds[0], files[1], seconds[1], files[2], seconds[2])


def _loaded(load: Callable[[Path], object], folder: Path, rows: int) -> str:
    share = rows // COMMITS
    for first in range(0, COMMITS * share, share):
        file = folder / f"{first}.parquet"
        rows_of(np.arange(first, first + share)).drop("status", "seq").write_parquet(file)
        load(file)
        file.unlink()
    return str(folder / "table")


def _replace_some(load: Callable[[Path], object], folder: Path, rows: int) -> None:
    numbers = np.random.default_rng(SEED).choice(rows, int(rows * MARKED_SHARE), replace=False)
    for number, share in enumerate(np.array_split(numbers, MARKING_COMMITS)):
        file = folder / f"replaced-{number}.parquet"
        rows_of(np.sort(share)).drop("status", "seq").write_parquet(file)
        load(file)
