"""`bench keyed --growth`: the same batches into tables of 1, 4 and 16 times the rows.

A batch brings new rows, and corrects some of the newest of the table: as many whatever the size of the table. What a
table has before lies as batches would have left it, in the order of time.

python -m penstock.bench.keyed.growth BOOTSTRAP TOPIC BATCH FOLDER: seconds of a batch, by the rows of the table.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

from penstock.bench.keyed.measurements import DEVICES, NEWEST_SHARE, Measurements, job_text
from penstock.bench.meters import Say
from penstock.bench.sides import PARTITIONS, in_turn, loader, run_job, run_side, written_job
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic
from penstock.events import BatchCommitted, Event
from penstock.job.spec import SparkSpec
from penstock.spark.session import open_spark

SIZES = (1, 4, 16)
BATCHES = 4
SMALLEST_BATCHES = 2
"""The smallest table has the rows of so many batches."""
FILES = 4
_TOPIC = "growth"


def bench_growth(update_share: float, batch: int, say: Say) -> list[dict[str, Any]]:
    """The seconds of a batch for each size of the table."""
    smallest = SMALLEST_BATCHES * batch
    newest = int(smallest * NEWEST_SHARE)
    sample = Measurements(BATCHES * batch, update_share, rows_before=max(SIZES) * smallest, newest=newest)
    say(f"producing {BATCHES} batches for tables of {', '.join(f'{size * smallest:,}' for size in SIZES)} rows")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder) / "kafka") as cluster,
    ):
        create_topic(cluster.bootstrap, _TOPIC, PARTITIONS)
        in_turn(sample.values())(cluster.bootstrap, _TOPIC)
        measured = run_side(__name__, cluster.bootstrap, _TOPIC, str(batch), f"{folder}/tables")
    return list(measured["growth"])


def main(arguments: list[str]) -> None:
    bootstrap, topic, batch, folder = arguments
    spark = open_spark(SparkSpec(), "bench growth", light=True)
    growth = Growth(spark, bootstrap, topic, int(batch))
    # Once for nothing: a running job is measured, not the JVM's start.
    sizes = [SIZES[0], *SIZES]
    found = [growth.measure(size, Path(folder) / f"{number}") for number, size in enumerate(sizes)]
    print(json.dumps({"growth": found[1:]}))
    spark.stop()


@dataclass(slots=True)
class CommitTimes:
    """Notes how long batches took."""

    seconds: list[float] = field(default_factory=list)

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self.seconds.append(event.seconds)


@dataclass(frozen=True, slots=True)
class Growth:
    """The same batches into tables of several sizes."""

    spark: SparkSession
    bootstrap: str
    topic: str
    batch: int

    def measure(self, size: int, folder: Path) -> dict[str, Any]:
        """Make a table of a size, carry the batches into it, and tell how long the middle one took."""
        folder.mkdir(parents=True)
        text = job_text(self.bootstrap, self.topic, self.batch, folder / "table")
        self._fill(size, folder, text)
        times = CommitTimes()
        run_job(self.spark, folder, text, times)
        shutil.rmtree(folder)
        rows = size * SMALLEST_BATCHES * self.batch
        return {"rows": rows, "batch_s": round(statistics.median(times.seconds), 3)}

    def _fill(self, size: int, folder: Path, text: str) -> None:
        """Give the table its rows: the newest of those that the largest one has."""
        load = loader(self.spark, written_job(folder, text))
        for number, piece in enumerate(self._pieces(size)):
            files = folder / f"files-{number}"
            files.mkdir()
            for part, rows in enumerate(piece.iter_slices(-(-len(piece) // FILES))):
                rows.write_parquet(files / f"{part}.parquet")
            load(files)
            shutil.rmtree(files)

    def _pieces(self, size: int) -> Iterator[pl.DataFrame]:
        end = max(SIZES) * SMALLEST_BATCHES * self.batch
        for first in range(end - size * SMALLEST_BATCHES * self.batch, end, self.batch):
            yield rows_of(np.arange(first, first + self.batch), end)


def rows_of(numbers: np.typing.NDArray[np.int64], end: int) -> pl.DataFrame:
    """Rows as the records of these numbers would have left them, older than every record of the log."""
    rng = np.random.default_rng(int(numbers[0]))
    count = len(numbers)
    return pl.DataFrame({"number": numbers}).select(
        pl.format("device-{}", (pl.col("number") % DEVICES).cast(pl.String).str.zfill(4)).alias("device"),
        (pl.col("number") // DEVICES).alias("at"),
        pl.Series("temperature", rng.uniform(-20, 40, count).round(3)),
        pl.Series("humidity", rng.random(count).round(4)),
        pl.Series("status", rng.choice(["ok", "ok", "ok", "low battery"], count)),
        (pl.col("number") - end).alias("seq"),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
