"""Records out of quarantine become points like others, each once (RULES Q2, W2)."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from penstock.engine.replay import replay
from tests.scenarios.local_spark import local_session
from tests.scenarios.rollup.damage import PARTIALS
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.support.quarantine_url import quarantine_folders

DAY = 86_400


@pytest.fixture
def rollup(tmp_path: Path) -> Rollup:
    """Points of now, of the next day and of the day after."""
    rollup = Rollup(tmp_path, more="late: update\nupdate_grace: 7d\n")
    rollup.send(0, point(START), point(START + DAY), point(START + 2 * DAY))
    rollup.send(1, point(START))
    rollup.run()
    rollup.clock += DAY
    return rollup


def replayed(rollup: Rollup, step: str = "") -> None:
    def crash(reached: str) -> None:
        if reached == step:
            raise ConnectionError(step)

    replay(rollup.job, environment=rollup.environment(at_step=crash), spark=local_session())


@pytest.mark.parametrize("step", ["replay_staged", "replay_committed", "replay_removed"])
def test_a_replay_that_is_interrupted_and_repeated_counts_each_point_once(rollup: Rollup, step: str) -> None:
    with pytest.raises(ConnectionError):
        replayed(rollup, step)
    replayed(rollup)
    rollup.clock += 3600
    rollup.run()
    assert rollup.counts("1m") == {START: 2, START + DAY: 1}
    report = rollup.verify(values=True)
    assert {check.name: check.verdict.value for check in report.checks} == dict.fromkeys(
        (item.name for item in report.checks), "proven"
    )


def test_a_record_that_is_still_too_far_ahead_stays_in_quarantine(rollup: Rollup) -> None:
    [quarantine] = quarantine_folders(rollup.folder / PARTIALS)
    assert pl.read_delta(str(quarantine)).height == 2
    replayed(rollup)
    assert pl.read_delta(str(quarantine))["value"].to_list() == [point(START + 2 * DAY)]
