"""How far event time has come, and what holds it back (RULES W1, W4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logs.log import Partition
from penstock.tables.rollup.watermark import (
    READ_LATELY_MS,
    HeldBy,
    PartitionTime,
    Watermark,
    watermark,
)

IDLE_MS = 60_000
P0, P1 = Partition("metrics", "id", 0), Partition("metrics", "id", 1)


def read_to_end(event_ms: int | None, moved_ms: int) -> PartitionTime:
    """Its last record had a point."""
    return PartitionTime(10, 10, event_ms, moved_ms, moved_ms)


def with_unread(event_ms: int | None, moved_ms: int) -> PartitionTime:
    return PartitionTime(10, 11, event_ms, moved_ms, moved_ms)


def without_points(event_ms: int | None, last_point_ms: int, read_to_end_ms: int, moved_ms: int) -> PartitionTime:
    """Records arrive all the time: some are unread, whenever one looks."""
    return PartitionTime(10, 11, event_ms, moved_ms, last_point_ms, read_to_end_ms)


def test_the_slowest_partition_that_is_not_idle_decides() -> None:
    times = {P0: read_to_end(5_000, 100_000), P1: read_to_end(3_000, 100_000)}
    assert watermark(times, None, IDLE_MS, 100_001) == Watermark(3_000, P1, HeldBy.SILENT)


def test_w1_a_partition_with_unread_records_holds_the_watermark_indefinitely() -> None:
    times = {P0: read_to_end(900_000, 0), P1: with_unread(3_000, 0)}
    assert watermark(times, None, IDLE_MS, 10**12) == Watermark(3_000, P1, HeldBy.UNREAD)


def test_w1_a_partition_that_is_read_to_its_end_is_idle_exactly_after_idle_after() -> None:
    times = {P0: with_unread(900_000, 100_000), P1: read_to_end(3_000, 100_000)}
    assert watermark(times, None, IDLE_MS, 159_999).at_ms == 3_000
    assert watermark(times, None, IDLE_MS, 160_000) == Watermark(900_000, P0, HeldBy.UNREAD)


def test_w1_a_partition_created_later_enters_at_the_present_watermark() -> None:
    unstarted = {P0: with_unread(900_000, 0), P1: PartitionTime(None, 5, None, None, None)}
    assert watermark(unstarted, 800_000, IDLE_MS, 10**9) == Watermark(800_000, P1, HeldBy.UNSTARTED)
    started = {P0: with_unread(900_000, 0), P1: PartitionTime(0, 5, None, 10**9, 10**9)}
    assert watermark(started, 800_000, IDLE_MS, 10**9) == Watermark(800_000, P1, HeldBy.UNREAD)


def test_an_empty_partition_holds_the_watermark_only_until_it_is_idle() -> None:
    times = {P0: with_unread(900_000, 0), P1: PartitionTime(0, 0, None, 1_000, 1_000)}
    assert watermark(times, None, IDLE_MS, 60_999) == Watermark(None, P1, HeldBy.SILENT)
    assert watermark(times, None, IDLE_MS, 61_000).at_ms == 900_000


def test_when_all_partitions_are_idle_the_watermark_advances_with_the_clock() -> None:
    times = {P0: read_to_end(500_000, 1_000_000), P1: read_to_end(700_000, 900_000)}
    assert watermark(times, None, IDLE_MS, 1_090_000) == Watermark(790_000, None)


def test_a_partition_started_later_does_not_move_the_watermark_of_an_idle_stream_back() -> None:
    times = {P0: read_to_end(500_000, 1_000_000), P1: read_to_end(None, 1_500_000)}
    assert watermark(times, None, IDLE_MS, 1_600_000) == Watermark(1_100_000, None)


def test_w1_a_partition_is_idle_after_idle_after_without_a_point_although_its_position_moves() -> None:
    times = {P0: with_unread(900_000, 160_000), P1: PartitionTime(10, 10, 3_000, 159_000, 100_000)}
    assert watermark(times, None, IDLE_MS, 159_999) == Watermark(3_000, P1, HeldBy.SILENT)
    assert watermark(times, None, IDLE_MS, 160_000) == Watermark(900_000, P0, HeldBy.UNREAD)


def test_w1_a_partition_without_points_that_always_has_unread_records_holds_time_only_where_it_was_read() -> None:
    p0, now_ms = with_unread(155_000, 161_000), 161_000
    times = {P0: p0, P1: without_points(None, 100_000, read_to_end_ms=160_000, moved_ms=161_000)}
    assert watermark(times, None, IDLE_MS, now_ms) == Watermark(155_000, P0, HeldBy.UNREAD)
    assert times[P1].without_points(now_ms, IDLE_MS)
    # Another process has read partition 0 further: what arrived in partition 1 since may hold points of that time.
    ahead = {**times, P0: with_unread(190_000, 191_000)}
    assert watermark(ahead, None, IDLE_MS, 191_000) == Watermark(160_000, P1, HeldBy.WITHOUT_POINTS)


def test_w1_a_partition_without_points_for_less_than_idle_after_is_not_idle() -> None:
    times = {P0: with_unread(900_000, 0), P1: without_points(3_000, 100_000, read_to_end_ms=159_999, moved_ms=161_000)}
    assert watermark(times, None, IDLE_MS, 170_000) == Watermark(3_000, P1, HeldBy.UNREAD)


def test_w1_a_backlog_holds_the_watermark_although_the_records_read_so_far_had_no_points() -> None:
    behind = PartitionTime(10, 5_000, None, moved_ms=900_000, last_point_ms=0, read_to_end_ms=None)
    times = {P0: with_unread(900_000, 900_000), P1: behind}
    assert watermark(times, 1_000, IDLE_MS, 900_000) == Watermark(1_000, P1, HeldBy.UNREAD)


def test_w1_a_partition_without_points_holds_the_watermark_if_no_process_reads_it() -> None:
    read_ms = 1_000_000
    times = {P0: with_unread(5_000, 0), P1: without_points(3_000, 100_000, read_ms, moved_ms=read_ms)}
    assert watermark(times, None, IDLE_MS, read_ms + READ_LATELY_MS - 1).at_ms == 5_000, "an old event time"
    assert watermark(times, None, IDLE_MS, read_ms + READ_LATELY_MS) == Watermark(3_000, P1, HeldBy.UNREAD)


def test_when_no_partition_has_points_the_watermark_advances_as_far_as_records_are_read() -> None:
    times = {P0: without_points(500_000, 100_000, 190_000, 191_000), P1: read_to_end(400_000, 90_000)}
    assert watermark(times, None, IDLE_MS, 195_000) == Watermark(590_000, None)


@pytest.mark.parametrize("committed", [None, 4_000])
def test_a_stream_without_points_has_no_watermark_of_its_own(committed: int | None) -> None:
    assert watermark({P0: read_to_end(None, 0)}, committed, IDLE_MS, 10**9).at_ms == committed
    assert watermark({}, committed, IDLE_MS, 10**9).at_ms == committed


TIMES = st.builds(
    PartitionTime,
    position=st.none() | st.integers(0, 3),
    log_end=st.integers(3, 4),
    event_ms=st.none() | st.integers(0, 10**6),
    moved_ms=st.none() | st.integers(0, 10**6),
    last_point_ms=st.none() | st.integers(0, 10**6),
    read_to_end_ms=st.none() | st.integers(0, 10**6),
)


@given(
    st.lists(st.tuples(st.dictionaries(st.sampled_from([P0, P1]), TIMES), st.integers(0, 2 * 10**6)), max_size=8),
)
def test_w4_the_watermark_never_falls(
    moments: list[tuple[dict[Partition, PartitionTime], int]],
) -> None:
    committed: int | None = None
    for times, now_ms in moments:
        result = watermark(times, committed, IDLE_MS, now_ms).at_ms
        assert committed is None or (result is not None and result >= committed)
        committed = result


@given(st.dictionaries(st.sampled_from([P0, P1]), TIMES, min_size=1), st.integers(0, 2 * 10**6))
def test_the_watermark_never_passes_the_event_time_of_a_partition_with_unread_records(
    times: dict[Partition, PartitionTime], now_ms: int
) -> None:
    unread = [item for item in times.values() if item.unread and not item.idle(now_ms, IDLE_MS)]
    result = watermark(times, None, IDLE_MS, now_ms).at_ms
    if any(time.event_ms is None for time in unread):
        assert result is None
    elif unread:
        assert result is None or result <= min(time.event_ms for time in unread if time.event_ms is not None)
