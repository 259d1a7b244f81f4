"""`bench keyed --growth`: the same batches into tables of 1, 4 and 16 times the rows.

A batch brings new rows, and corrects some of the newest of the table: as many whatever the size of the table. What a
table has before lies as batches would have left it, in the order of time.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.apart import run_apart
from benchmarks.keyed.measurements import NEWEST_SHARE, Measurements, job_text, rows_of, write_files
from benchmarks.meters import Report
from benchmarks.sides import filled_topic, in_turn, loader, run_job, written_job
from penstock.events import BatchCommitted, Event
from penstock.job.spec import SparkSpec
from penstock.spark.session import open_spark

SIZES = (1, 4, 16)
BATCHES = 4
SMALLEST_BATCHES = 2
"""The smallest table has the rows of so many batches."""
FILES = 4


def bench_growth(update_share: float, batch: int, report: Report) -> list[dict[str, Any]]:
    """The seconds of a batch for each size of the table."""
    smallest = SMALLEST_BATCHES * batch
    newest = int(smallest * NEWEST_SHARE)
    sample = Measurements(BATCHES * batch, update_share, rows_before=max(SIZES) * smallest, newest=newest)
    report(f"producing {BATCHES} batches for tables of {', '.join(f'{size * smallest:,}' for size in SIZES)} rows")
    with filled_topic(in_turn(sample.values())) as (bootstrap, folder):
        return list(run_apart(_measure_all, bootstrap, batch, folder))


def _measure_all(bootstrap: str, batch: int, folder: Path) -> list[dict[str, Any]]:
    spark = open_spark(SparkSpec(), "bench growth", light=True)
    # Once for nothing: a running job is measured, not the JVM's start.
    sizes = [SIZES[0], *SIZES]
    result = [_measure(spark, bootstrap, batch, size, folder / f"{number}") for number, size in enumerate(sizes)]
    spark.stop()
    return result[1:]


def _measure(spark: SparkSession, bootstrap: str, batch: int, size: int, folder: Path) -> dict[str, Any]:
    """Give a table the newest rows of those that the largest one has, carry the batches into it, and time them."""
    folder.mkdir()
    text = job_text(bootstrap, batch, folder / "table")
    load = loader(spark, written_job(folder, text))
    end, rows = (times * SMALLEST_BATCHES * batch for times in (max(SIZES), size))
    for first in range(end - rows, end, batch):
        # Their sequences are below those of all records.
        files = write_files(rows_of(np.arange(first, first + batch), first - end), folder / f"files-{first}", FILES)
        load(files)
        shutil.rmtree(files)
    times = CommitTimes()
    run_job(spark, folder, text, times)
    shutil.rmtree(folder)
    return {"rows": rows, "batch_s": round(statistics.median(times.seconds), 3)}


@dataclass(slots=True)
class CommitTimes:
    """Notes how long batches took."""

    seconds: list[float] = field(default_factory=list)

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self.seconds.append(event.seconds)
