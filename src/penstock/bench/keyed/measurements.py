"""The records of the benchmark, in the order of time; some of them correct one of the newest. And the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DEVICES = 1_000
NEWEST_SHARE = 0.1
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


def job_text(bootstrap: str, topic: str, batch: int, table: Path) -> str:
    """The job file of a table that takes the records in batches of so many."""
    path = json.dumps(str(table))
    return _JOB.format(bootstrap=bootstrap, topic=topic, table=path, batch=batch, buckets=BUCKETS)


@dataclass(frozen=True, slots=True)
class Measurements:
    """How many records, and how many of them correct an earlier one."""

    records: int
    update_share: float
    seed: int = 20260301
    rows_before: int = 0
    """That the table has already."""
    newest: int | None = None
    """So many rows at the end are corrected; None: a tenth of those that are there."""

    def values(self) -> Iterator[bytes]:
        numbers, more = self._numbers(), np.random.default_rng(self.seed + 1)
        for first in range(0, self.records, BLOCK):
            some = numbers[first : first + BLOCK]
            columns = (
                (some % DEVICES).tolist(),
                (some // DEVICES).tolist(),
                more.uniform(-20, 40, len(some)).tolist(),
                more.random(len(some)).tolist(),
                more.choice(STATUSES, len(some)).tolist(),
            )
            for seq, (device, at, temperature, humidity, status) in enumerate(zip(*columns, strict=True), first):
                yield (
                    f'{{"device": "device-{device:04}", "at": {at}, "temperature": {temperature:.3f}, '
                    f'"humidity": {humidity:.4f}, "status": "{status}", "seq": {seq}}}'
                ).encode()

    @property
    def rows(self) -> int:
        """How many keys there are afterwards."""
        numbers = self._numbers()
        return self.rows_before + len(np.unique(numbers[numbers >= self.rows_before]))

    def _numbers(self) -> npt.NDArray[np.int64]:
        """The row of each record: a new one, or one of the newest."""
        rng = np.random.default_rng(self.seed)
        corrects = rng.random(self.records) < self.update_share
        if not self.rows_before:
            corrects[:1] = False
        fresh = self.rows_before + np.cumsum(~corrects) - ~corrects
        oldest = (fresh * (1 - NEWEST_SHARE)).astype(np.int64) if self.newest is None else fresh - self.newest
        return np.where(corrects, oldest + (rng.random(self.records) * (fresh - oldest)).astype(np.int64), fresh)
