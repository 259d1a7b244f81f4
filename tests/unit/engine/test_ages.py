"""The ages of unread records: read every 30 seconds, and kept in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from penstock.engine.ages import INTERVAL_SECONDS, Ages
from penstock.errors import TransientError
from penstock.logs.log import Partition
from tests.support.memory_log import MemoryLog, MemoryRecord

ZERO, ONE = Partition("orders", "id", 0), Partition("orders", "id", 1)


@dataclass(slots=True)
class AskedLog(MemoryLog):
    """Notes what it is asked for, and may not answer."""

    asked: list[dict[Partition, int]] = field(default_factory=list)
    away: bool = False

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        self.asked.append(dict(offsets))
        if self.away:
            raise TransientError("away")
        return MemoryLog.record_times(self, offsets, seconds_max)


class Clock:
    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> AskedLog:
    """Two partitions of records that were made at 900, 910, 920..."""
    made = {offset: MemoryRecord(b"{}", at=900.0 + 10 * offset) for offset in range(5)}
    return AskedLog({ZERO: made, ONE: made})


def test_the_age_grows_between_two_readings_and_costs_nothing(log: AskedLog, clock: Clock) -> None:
    ages = Ages(log, clock)
    for _ in range(3):
        ages.read({ZERO: 2})
        clock.seconds += 9
    assert log.asked == [{ZERO: 2}]
    assert ages.of(ZERO, 2) == 107
    assert ages.of(ONE, 0) is None


def test_a_partition_that_moved_has_the_age_of_its_last_reading(log: AskedLog, clock: Clock) -> None:
    ages = Ages(log, clock)
    ages.read({ZERO: 2})
    clock.seconds += 9
    assert ages.of(ZERO, 4) == 80
    clock.seconds += INTERVAL_SECONDS
    ages.read({ZERO: 4})
    assert ages.of(ZERO, 4) == 99


def test_a_log_that_does_not_answer_leaves_ages_as_they_were(log: AskedLog, clock: Clock) -> None:
    ages = Ages(log, clock)
    ages.read({ZERO: 2})
    log.away = True
    clock.seconds += INTERVAL_SECONDS
    ages.read({ZERO: 2})
    assert len(log.asked) == 2
    assert ages.of(ZERO, 2) == 110


def test_the_retention_of_a_topic_is_read_once(log: AskedLog, clock: Clock) -> None:
    log.settings["orders"] = {"retention.ms": "60000"}
    ages = Ages(log, clock)
    ages.read({ZERO: 2})
    log.settings["orders"] = {"retention.ms": "1"}
    clock.seconds += INTERVAL_SECONDS
    ages.read({ZERO: 2})
    assert ages.retention == {"orders": 60.0}
