"""The rules of closing, each as the schedule that it is about (RULES W1 to W4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.tables.rollup.decide import BeginClose, Clean, CompleteClose
from penstock.tables.rollup.watermark import HeldBy
from tests.unit.tables.rollup.rollup_lake import HOUR, MINUTE, TEN_MINUTES, Point, RollupLake, partition


def test_w1_unread_records_of_any_partition_hold_windows_open_indefinitely(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, partitions=2)
    lake.land([Point("b", 0, 1.0)], 1)
    lake.log.append(partition(1), b"not read yet")
    lake.land([Point("a", 0, 1.0), Point("a", 600_000, 1.0)], 0)
    lake.clock.at = 10**6
    assert lake.work() == []
    mark = lake.closing.watermark(lake.clock.at)
    assert (mark.held_by, mark.reason) == (partition(1), HeldBy.UNREAD)
    lake.commit([Point("b", 540_000, 1.0)], 1)
    lake.work()
    assert lake.values("count") == {("1m", "a", 0): (1,), ("1m", "b", 0): (1,)}


def test_w1_a_partition_that_is_read_to_its_end_and_silent_lets_windows_close(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, partitions=2)
    lake.land([Point("b", 0, 1.0)], 1)
    lake.clock.at = 59.0
    lake.land([Point("a", 0, 1.0), Point("a", 90_000, 1.0)], 0)
    assert lake.work() == []
    lake.clock.at = 60.0
    lake.work()
    assert lake.values("count") == {("1m", "a", 0): (1,), ("1m", "b", 0): (1,)}


def test_w1_a_stream_that_stops_still_closes_its_windows_by_the_clock(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 30_000, 1.0)])
    lake.clock.at = 59.9
    assert lake.work() == []
    lake.clock.at = 60.0
    lake.work()
    assert lake.values("count") == {("1m", "a", 0): (1,)}


def test_w1_a_partition_created_later_enters_at_the_present_watermark(tmp_path: Path) -> None:
    """Its old records do not reopen closed windows, and no window closes before it is read."""
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    lake.log.append(partition(1), b"")
    lake.land([Point("a", 60_000, 1.0), Point("a", 600_000, 1.0)])
    assert lake.work() == [], "the new partition has no position yet"
    lake.start(1)
    assert lake.work() == [], "it has not been read"
    lake.commit([Point("b", 1_000, 1.0)], 1)
    lake.work(idle=True)
    assert lake.number("until") == 60_000, "what it has seen holds the watermark, which does not fall"
    lake.land([Point("b", 600_000, 1.0)], 1)
    lake.work()
    assert lake.values("count") == {("1m", "a", 0): (1,), ("1m", "a", 60_000): (1,)}
    assert lake.number("late/1m") == 1


def test_w2_points_are_late_if_and_only_if_committed_after_the_close_began(tmp_path: Path) -> None:
    """The order of the partials log decides, also while a close is between two of its steps."""
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0), Point("a", 60_000, 1.0)])
    begin = lake.due()
    assert isinstance(begin, BeginClose)
    lake.land([Point("a", 1_000, 2.0)])
    lake.perform(begin)
    lake.land([Point("a", 2_000, 4.0)])
    complete = lake.due()
    assert isinstance(complete, CompleteClose)
    lake.land([Point("a", 3_000, 8.0)])
    lake.perform(complete)
    assert lake.values("sum") == {("1m", "a", 0): (3.0,)}
    lake.work(idle=True)
    assert lake.values("sum") == {("1m", "a", 0): (3.0,)}
    assert lake.number("late/1m") == 2


def test_w2_two_processes_that_close_at_once_land_every_row_once(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, late="update", update_grace_ms=HOUR.millis)
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    lake.land([Point("a", 1_000, 1.0), Point("b", 60_000, 1.0), Point("clock", 120_000, 0.0)])
    other = lake.another_process()
    first, second = lake.due(), lake.due(other)
    assert isinstance(first, BeginClose) and first == second
    lake.perform(first)
    lake.perform(first, other)
    first, second = lake.due(), lake.due(other)
    assert isinstance(first, CompleteClose) and first == second
    lake.perform(first)
    lake.perform(first, other)
    lake.work()
    assert lake.values("count", "revision") == {("1m", "a", 0): (2, 1), ("1m", "b", 60_000): (1, 0)}
    assert (lake.number("closed"), lake.number("updated")) == (2, 1)


def test_w3_every_interval_is_computed_from_the_finest_partials_and_they_stay_until_the_longest_is_closed(
    tmp_path: Path,
) -> None:
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES))
    for at in range(0, 600_000, 120_000):
        lake.land([Point("a", at, 1.0)])
        lake.close_all(at + 60_000)
    assert lake.partial_points() == 10
    lake.land([Point("clock", 600_000, 0.0)])
    done = lake.work()
    assert [type(item) for item in done] == [BeginClose, CompleteClose, Clean]
    assert lake.values("count")["10m", "a", 0] == (5,)
    assert (lake.partial_points(), lake.number("points_removed")) == (1, 10), "only the last point is in an open window"


def test_w3_partials_stay_for_the_grace_and_late_points_after_it_are_counted(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, late="update", update_grace_ms=120_000)
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    lake.land([Point("a", 1_000, 1.0)])
    lake.close_all(180_000)
    assert lake.values("count", "revision") == {("1m", "a", 0): (2, 1)}, "within the grace"
    lake.close_all(240_000)
    assert lake.number("cleaned") == 120_000
    lake.land([Point("a", 2_000, 1.0)])
    lake.close_all(300_000)
    assert lake.values("count", "revision") == {("1m", "a", 0): (2, 1)}
    assert lake.number("late/1m") == 1


def test_w4_event_time_and_watermark_never_fall_also_for_another_process(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 600_000, 1.0), Point("a", 0, 1.0)])
    lake.work()
    lake.land([Point("a", 300_000, 1.0)])
    state = lake.partials.state([partition(0)]).of(partition(0))
    assert state.numbers["event_ms"] == 600_000
    assert lake.another_process().watermark(0.0).at_ms == 600_000
    lake.log.delete("metrics")
    lake.log.append(partition(0), b"")
    lake.log.append(partition(1), b"")
    assert lake.another_process().watermark(0.0).at_ms == 600_000, "an unknown partition holds it where it is"


def test_partials_are_cleaned_although_a_close_is_always_due(tmp_path: Path) -> None:
    """Before every check a point arrives that passes the end of another window."""
    lake = RollupLake(tmp_path)
    done: list[str] = []
    for minute in range(30):
        lake.land([Point("a", minute * 60_000, 1.0)])
        if (chore := lake.due()) is not None:
            lake.perform(chore)
            done.append(type(chore).__name__)
    assert set(done) == {"BeginClose", "CompleteClose", "Clean"}
    assert lake.number("points_removed") > 5


@pytest.mark.parametrize("own", [(), (1,)])
def test_only_the_process_with_the_lowest_partition_closes(tmp_path: Path, own: tuple[int, ...]) -> None:
    lake = RollupLake(tmp_path, partitions=2)
    for number in range(2):
        lake.land([Point("a", 0, 1.0), Point("a", 60_000, 1.0)], number)
    assert lake.due(own=[partition(item) for item in own]) is None
    assert not lake.closing.lags()
    assert isinstance(lake.due(own=[partition(0)]), BeginClose)
    assert lake.closing.lags()


def test_tables_and_log_are_checked_once_a_second_while_nothing_is_due(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    assert lake.closing.chores(lake.view()) == ()
    lake.land([Point("a", 0, 1.0), Point("a", 60_000, 1.0)])
    lake.clock.at = 0.9
    assert lake.closing.chores(lake.view()) == ()
    lake.clock.at = 1.0
    (begin,) = lake.closing.chores(lake.view())
    lake.perform(begin)
    assert len(lake.closing.chores(lake.view())) == 1, "after work there may be more at once"
