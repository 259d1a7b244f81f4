"""The records of the benchmark, in the order of time; some of them correct one of the newest. And the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.sides import TOPIC

DEVICES = 1_000
NEWEST_SHARE = 0.1
SEED = 20260301
STATUSES = ("ok", "ok", "ok", "low battery")
BLOCK = 100_000
BUCKETS = 4
"""Twice the cores of a small machine."""
_JOB = """\
job: bench
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], start: earliest}}
decode: json
schema: {{device: string, at: long, temperature: double, humidity: double, status: string, seq: long}}
table:
  keyed: {{path: {table}, partition_keys: [device], row_keys: [at], sequence: seq, buckets: {buckets}}}
flush: {{max_messages_per_batch: {batch}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}
"""


def job_text(bootstrap: str, batch: int, table: Path, buckets: int = BUCKETS) -> str:
    """The job file of a table that takes the records in batches of so many."""
    path = json.dumps(str(table))
    return _JOB.format(bootstrap=bootstrap, topic=TOPIC, table=path, batch=batch, buckets=buckets)


def rows_of(numbers: npt.NDArray[np.int64], sequence: int = 0) -> pl.DataFrame:
    """A measurement for each number, which gives its device and time; `sequence` is that of the first."""
    rng = np.random.default_rng(int(numbers[0]))
    count = len(numbers)
    return pl.DataFrame({"number": numbers}).select(
        pl.format("device-{}", (pl.col("number") % DEVICES).cast(pl.String).str.zfill(4)).alias("device"),
        (pl.col("number") // DEVICES).alias("at"),
        pl.Series("temperature", rng.uniform(-20, 40, count).round(3)),
        pl.Series("humidity", rng.random(count).round(4)),
        pl.Series("status", rng.choice(STATUSES, count)),
        pl.int_range(sequence, sequence + count).alias("seq"),
    )


def write_files(rows: pl.DataFrame, folder: Path, count: int) -> Path:
    """The rows as Parquet files of a new folder."""
    folder.mkdir()
    for number, piece in enumerate(rows.iter_slices(-(-len(rows) // count))):
        piece.write_parquet(folder / f"{number}.parquet")
    return folder


@dataclass(frozen=True, slots=True)
class Measurements:
    """How many records, and how many of them correct an earlier one."""

    records: int
    update_share: float
    rows_before: int = 0
    """That the table has already."""
    newest: int | None = None
    """So many rows at the end are corrected; None: a tenth of those that are there."""

    def values(self) -> Iterator[bytes]:
        numbers = self._numbers()
        for first in range(0, self.records, BLOCK):
            yield from rows_of(numbers[first : first + BLOCK], first).write_ndjson().encode().splitlines()

    @property
    def rows(self) -> int:
        """How many keys there are afterwards."""
        numbers = self._numbers()
        return self.rows_before + len(np.unique(numbers[numbers >= self.rows_before]))

    def _numbers(self) -> npt.NDArray[np.int64]:
        """The row of each record: a new one, or one of the newest."""
        rng = np.random.default_rng(SEED)
        corrects = rng.random(self.records) < self.update_share
        if not self.rows_before:
            corrects[:1] = False
        fresh = self.rows_before + np.cumsum(~corrects) - ~corrects
        oldest = (fresh * (1 - NEWEST_SHARE)).astype(np.int64) if self.newest is None else fresh - self.newest
        return np.where(corrects, oldest + (rng.random(self.records) * (fresh - oldest)).astype(np.int64), fresh)
