"""A process shares a partition that lags with others, range by range: it closes and publishes all the same."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from penstock.engine.ownership import LogBounds, Tokens
from penstock.engine.ranges import RangeWork
from penstock.lake.proposal import Outcome
from penstock.lake.state import TableState
from penstock.logs.log import Partition
from penstock.staging.reports import Written
from tests.scenarios.rollup.rollups import START, Rollup, point

ROUNDS = 20


class AlwaysShared:
    """Ranges of every partition, of which there is always another one to do."""

    def share(self, tokens: Tokens, state: TableState, bounds: LogBounds) -> frozenset[Partition]:
        return frozenset(tokens)

    def work(self, idle: bool) -> Outcome:
        return Outcome(None)

    def close(self) -> None:
        """There is nothing to give back."""


def test_windows_are_closed_while_the_partitions_of_the_log_are_shared(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    for number in (0, 1):
        rollup.send(number, *(point(START + each) for each in range(100)))
    rollup.clock += 100
    rounds = rollup.open()
    while not rounds.table.state(rollup.log.partitions()).of(rollup.log.partitions()[1]).position:
        rounds.round(flush_now=True)
    rollup.clock += 3600
    rounds.ranges = cast("RangeWork[Written]", AlwaysShared())
    for _ in range(ROUNDS):
        rounds.round(flush_now=True)
    assert sum(rollup.counts("10m").values()) == 200
