"""How far event time has come, and what holds it back (RULES W1, W4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logs.log import Partition
from penstock.tables.rollup.closing.watermark import HeldBy, Holder, PartitionTime, Watermark, watermark

IDLE_MS = 60_000
P0, P1 = Partition("metrics", "id", 0), Partition("metrics", "id", 1)


def read_to_end(event_ms: int | None, moved_ms: int) -> PartitionTime:
    return PartitionTime(10, 10, event_ms, moved_ms)


def with_unread(event_ms: int | None, moved_ms: int) -> PartitionTime:
    return PartitionTime(10, 11, event_ms, moved_ms)


def test_the_slowest_partition_that_is_not_idle_decides() -> None:
    times = {P0: read_to_end(5_000, 100_000), P1: read_to_end(3_000, 100_000)}
    assert watermark(times, None, IDLE_MS, 100_001) == Watermark(3_000, Holder(P1, HeldBy.SILENT))


def test_w1_a_partition_with_unread_records_holds_the_watermark_however_long() -> None:
    times = {P0: read_to_end(900_000, 0), P1: with_unread(3_000, 0)}
    assert watermark(times, None, IDLE_MS, 10**12) == Watermark(3_000, Holder(P1, HeldBy.UNREAD))


def test_w1_a_partition_that_is_read_to_its_end_lets_go_after_idle_after_and_not_a_millisecond_before() -> None:
    times = {P0: with_unread(900_000, 100_000), P1: read_to_end(3_000, 100_000)}
    assert watermark(times, None, IDLE_MS, 159_999).at_ms == 3_000
    assert watermark(times, None, IDLE_MS, 160_000) == Watermark(900_000, Holder(P0, HeldBy.UNREAD))


def test_w1_a_partition_created_later_enters_at_the_present_watermark() -> None:
    unstarted = {P0: with_unread(900_000, 0), P1: PartitionTime(None, 5, None, None)}
    assert watermark(unstarted, 800_000, IDLE_MS, 10**9) == Watermark(800_000, Holder(P1, HeldBy.UNSTARTED))
    started = {P0: with_unread(900_000, 0), P1: PartitionTime(0, 5, None, 10**9)}
    assert watermark(started, 800_000, IDLE_MS, 10**9) == Watermark(800_000, Holder(P1, HeldBy.UNREAD))


def test_an_empty_partition_holds_the_watermark_only_until_it_is_idle() -> None:
    times = {P0: with_unread(900_000, 0), P1: PartitionTime(0, 0, None, 1_000)}
    assert watermark(times, None, IDLE_MS, 60_999) == Watermark(None, Holder(P1, HeldBy.SILENT))
    assert watermark(times, None, IDLE_MS, 61_000).at_ms == 900_000


def test_when_all_are_idle_time_goes_on_by_the_clock_from_the_last_event() -> None:
    times = {P0: read_to_end(500_000, 1_000_000), P1: read_to_end(700_000, 900_000)}
    assert watermark(times, None, IDLE_MS, 1_090_000) == Watermark(790_000, None)


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
)


@given(
    st.lists(st.tuples(st.dictionaries(st.sampled_from([P0, P1]), TIMES), st.integers(0, 2 * 10**6)), max_size=8),
)
def test_w4_the_watermark_never_falls_whatever_partitions_say(
    moments: list[tuple[dict[Partition, PartitionTime], int]],
) -> None:
    committed: int | None = None
    for times, now_ms in moments:
        found = watermark(times, committed, IDLE_MS, now_ms).at_ms
        assert committed is None or (found is not None and found >= committed)
        committed = found


@given(st.dictionaries(st.sampled_from([P0, P1]), TIMES, min_size=1), st.integers(0, 2 * 10**6))
def test_the_watermark_never_passes_what_a_partition_with_unread_records_has_seen(
    times: dict[Partition, PartitionTime], now_ms: int
) -> None:
    unread = [each for each in times.values() if each.position is None or each.position < each.log_end]
    found = watermark(times, None, IDLE_MS, now_ms).at_ms
    if any(each.event_ms is None for each in unread):
        assert found is None
    elif unread:
        assert found is None or found <= min(each.event_ms for each in unread if each.event_ms is not None)
