"""Several processes work on one partition, range by range: whatever happens, the table comes to the end of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.claims.member.range_client import RangeClient
from penstock.events import PositionCorrected, RangesClosed, RangesOpened
from penstock.tables.registry import KINDS
from tests.contract.toy import ToyKind
from tests.scenarios.ingest.shared_walk import HOT, SIZE, Walk

RECORDS = 12 * SIZE


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, ToyKind.name, ToyKind())


@pytest.mark.parametrize("seed", range(10))
def test_m5_retention_deaths_and_errors_neither_stop_nor_double_shared_work(seed: int, tmp_path: Path) -> None:
    walk = Walk(seed, tmp_path)
    walk.run()
    assert walk.counted(RangesOpened), "nothing was shared in this walk"


def shared(folder: Path) -> Walk:
    """A partition that lags, shared by its owner, which has done the first range."""
    walk = Walk(0, folder)
    walk.calm = True
    walk.produce(RECORDS)
    walk.processes[0].round()
    assert walk.counted(RangesOpened) == 1
    assert walk.here().position == SIZE
    return walk


def test_m5_the_rest_of_a_range_is_written_where_the_table_stands_inside_it(tmp_path: Path) -> None:
    walk = shared(tmp_path)
    helper = walk.processes[1]
    helper.armed["range_parked"] = lambda: walk.commit(SIZE + 4)
    helper.round()
    assert walk.here().position == SIZE + 4, "what was staged from the start of the range does not fit any more"
    walk.settle()
    walk.check()
    assert walk.here().totals.gap == 0


def test_m5_a_range_reported_as_done_that_the_table_does_not_have_is_written_all_the_same(tmp_path: Path) -> None:
    """The log of coordination may be wrong about the table; nobody waits for a range that nobody does."""
    walk = shared(tmp_path)
    helper = RangeClient(walk.processes[1].agent)
    held = helper.claim(HOT, SIZE)
    assert held is not None
    assert helper.finish(held)
    walk.processes[2].round()
    assert walk.group.claim(HOT).leases, "another range waits for the one that is missing"
    walk.settle()
    walk.check()
    assert walk.counted(PositionCorrected) == 1


def test_m5_a_shared_partition_that_retention_has_emptied_is_closed_and_its_gap_recorded(tmp_path: Path) -> None:
    walk = shared(tmp_path)
    helper = walk.processes[1]
    helper.armed["range_parked"] = lambda: walk.log.expire(HOT, RECORDS - 3)
    for process in walk.processes:
        process.round()
    walk.settle()
    walk.check()
    walk.processes[0].round()
    assert walk.counted(RangesClosed) == 1
    assert walk.group.claim(HOT).ranges is None
    assert walk.here().totals.gap > 0
