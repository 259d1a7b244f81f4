"""The ages of the oldest unread records of a running job, read now and then and within a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.logs.log import Log, Partition

INTERVAL_SECONDS = 30.0
READ_SECONDS_MAX = 1.0
"""How long a reading may delay the round, for all partitions together."""


@dataclass(slots=True)
class Ages:
    """What was last read, and the retention of topics as it was at first."""

    log: Log
    now: Callable[[], float]
    retention: dict[str, float | None] = field(default_factory=dict)
    _made_at: dict[Partition, tuple[int, float]] = field(default_factory=dict)
    """The offset that was asked for, and when its record was made."""
    _read_at: float = -math.inf

    def read(self, unread: Mapping[Partition, int]) -> None:
        """Read them if the last reading is old enough; `unread` has the first unread offsets of partitions with lag."""
        if self.now() < self._read_at + INTERVAL_SECONDS:
            return
        self._read_at = self.now()
        # A log that does not answer fails the round itself.
        with suppress(PenstockError):
            for topic in {partition.topic for partition in unread} - self.retention.keys():
                self.retention[topic] = self.log.retention_seconds(topic)
            times = self.log.record_times(unread, READ_SECONDS_MAX)
            self._made_at = {partition: (unread[partition], at) for partition, at in times.items()}

    def of(self, partition: Partition, offset: int) -> float | None:
        """The age of the record at an offset; of a partition that has moved since, as it was read."""
        if partition not in self._made_at:
            return None
        read_offset, made_at = self._made_at[partition]
        return max(0.0, (self.now() if read_offset == offset else self._read_at) - made_at)
