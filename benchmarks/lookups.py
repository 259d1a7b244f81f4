"""`bench lookups`: rows by their keys out of a keyed table, by `penstock.read` and by the plain table, files and time.

Measurements of 1,000 devices in the order of time, loaded in several commits, as batches of a topic would bring them;
then once more, with a fifth of the rows replaced, which are marked as deleted in their files.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
TRIES = 5
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
    """How many files were read and how long it took: by keys, and without them."""

    case: str
    rows: int
    files: int
    seconds: float
    plain_files: int
    plain_seconds: float


def bench_lookups(rows: int, report: Report) -> tuple[int, list[Answer]]:
    """Load a table, and ask it; how many files it has, and the answers."""
    spark = open_delta_spark("bench lookups")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        report(f"loading {rows:,} rows in {COMMITS} commits")
        load = loader(spark, written_job(Path(folder), _JOB.format(table=json.dumps(f"{folder}/table"))))
        path = _loaded(load, Path(folder), rows)
        files = len(spark.read.format("delta").load(path).inputFiles())
        answers = [_answer(spark, path, case, report) for case in _cases(rows // DEVICES)]
        report(f"replacing {MARKED_SHARE:.0%} of the rows")
        _replace_some(load, Path(folder), rows)
        marked = [_answer(spark, path, case, report) for case in _cases(rows // DEVICES)]
        answers += [replace(answer, case=f"{answer.case}, with {MARKED_SHARE:.0%} marked") for answer in marked]
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


def _answer(spark: SparkSession, path: str, case: Case, report: Report) -> Answer:
    report(f"asking for {case.name}")
    rows, files, seconds = _measured(lambda: penstock.read(spark, path, keys=case.keys).where(case.where))
    plain = spark.read.format("delta")
    same, plain_files, plain_seconds = _measured(lambda: plain.load(path).where(case.condition))
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
