"""The planner: when a batch is due, what it holds, and properties of every plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.job.spec import FlushPolicy, GapPolicy
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.plan import (
    BeyondEndError,
    GapError,
    PartitionInput,
    PlanTerms,
    Wait,
    plan,
    records_per_batch_max,
    records_per_flush,
)

FLUSH = FlushPolicy(
    allowed_latency_seconds=60, min_bytes_per_file=10_000, max_messages_per_batch=100, max_bytes_per_batch=100_000
)


def lane(number: int, position: int, first: int, end: int, waiting_since: float | None = 0.0) -> PartitionInput:
    return PartitionInput(Partition("web", "id", number), position, Bounds(first, end), waiting_since)


def terms(now: float = 0.0, record_bytes: float = 10.0, gap: GapPolicy = "fail", flush_now: bool = False) -> PlanTerms:
    return PlanTerms(FLUSH, gap, record_bytes, now, flush_now)


def slices(planned: Batch | Wait) -> list[tuple[int, int, int, int]]:
    assert isinstance(planned, Batch)
    return [(item.partition.number, item.start, item.read_from, item.end) for item in planned.slices]


def test_nothing_unread_waits_without_a_deadline() -> None:
    assert plan((lane(0, 7, 0, 7),), terms(), "b") == Wait(None)


def test_few_records_wait_until_the_allowed_latency() -> None:
    assert plan((lane(0, 0, 0, 5, waiting_since=100.0),), terms(now=130.0), "b") == Wait(160.0)


def test_records_that_waited_for_the_allowed_latency_are_due() -> None:
    assert slices(plan((lane(0, 0, 0, 5, waiting_since=100.0),), terms(now=160.0), "b")) == [(0, 0, 0, 5)]


def test_records_that_were_there_before_the_process_are_due_at_once() -> None:
    assert slices(plan((lane(0, 0, 0, 5, waiting_since=None),), terms(), "b")) == [(0, 0, 0, 5)]


def test_the_oldest_partition_is_due_and_the_others_join_its_batch() -> None:
    lanes = (lane(0, 0, 0, 5, waiting_since=0.0), lane(1, 3, 0, 4, waiting_since=59.0), lane(2, 9, 0, 9))
    assert slices(plan(lanes, terms(now=60.0), "b")) == [(0, 0, 0, 5), (1, 3, 3, 4)]


def test_a_full_file_is_due_before_the_latency() -> None:
    # 10,000 bytes at 10 bytes a record are 1,000 records.
    assert plan((lane(0, 0, 0, 999),), terms(), "b") == Wait(60.0)
    assert slices(plan((lane(0, 0, 0, 1000),), terms(), "b")) == [(0, 0, 0, 1000)]


def test_a_file_is_filled_by_whole_record_batches() -> None:
    # 10,000 / 30 = 333.3 records, so four record batches of 100.
    assert records_per_flush(FLUSH, 30.0) == 400


def test_once_reads_up_to_the_current_end() -> None:
    assert slices(plan((lane(0, 0, 0, 1),), terms(flush_now=True), "b")) == [(0, 0, 0, 1)]


def test_catching_up_takes_large_batches_and_shares_them_evenly() -> None:
    # 100,000 bytes at 10 bytes are 10,000 records: the small lane whole, the rest split between the large ones.
    lanes = (lane(0, 0, 0, 1_000_000), lane(1, 0, 0, 1000), lane(2, 0, 0, 1_000_000))
    assert slices(plan(lanes, terms(), "b")) == [(0, 0, 0, 4500), (1, 0, 0, 1000), (2, 0, 0, 4500)]


def test_a_backlog_is_bounded_by_bytes_and_not_by_max_messages_per_batch() -> None:
    """As on the reference page: `max_messages_per_batch` is a unit, and `max_bytes_per_batch` the bound."""
    few = FlushPolicy(min_bytes_per_file=1, max_messages_per_batch=2_500, max_bytes_per_batch=100_000)
    assert records_per_batch_max(few, 10.0) == 10_000
    assert records_per_batch_max(replace(few, max_bytes_per_batch=1), 10.0) == 2_500


def test_a_batch_bound_below_one_file_does_not_stop_the_job() -> None:
    small = FlushPolicy(min_bytes_per_file=10_000, max_messages_per_batch=100, max_bytes_per_batch=1)
    assert records_per_batch_max(small, 10.0) == 1000


def test_a_gap_stops_the_job_and_names_the_lost_offsets() -> None:
    with pytest.raises(GapError) as caught:
        plan((lane(3, 20, 50, 60),), terms(), "b")
    assert (caught.value.partition.number, caught.value.position, caught.value.first) == (3, 20, 50)


def test_a_gap_is_recorded_if_the_policy_is_record() -> None:
    planned = plan((lane(3, 20, 50, 60, None),), terms(gap="record"), "b")
    assert slices(planned) == [(3, 20, 50, 60)]
    assert isinstance(planned, Batch) and planned.slices[0].gap == 30


def test_a_log_that_lost_everything_gives_a_slice_that_is_only_a_gap() -> None:
    assert slices(plan((lane(3, 20, 60, 60, None),), terms(gap="record"), "b")) == [(3, 20, 60, 60)]


def test_a_position_beyond_the_end_stops_the_job() -> None:
    with pytest.raises(BeyondEndError) as caught:
        plan((lane(0, 61, 0, 60),), terms(gap="record"), "b")
    assert (caught.value.position, caught.value.end) == (61, 60)


@st.composite
def lanes_strategy(draw: st.DrawFn) -> tuple[PartitionInput, ...]:
    lanes = []
    for number in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, 1000))
        end = first + draw(st.integers(0, 100_000))
        position = draw(st.integers(0, end))
        lanes.append(lane(number, position, first, end, draw(st.none() | st.floats(0, 1000))))
    return tuple(lanes)


@given(lanes_strategy(), st.floats(0, 2000), st.floats(0.1, 5000), st.booleans())
def test_every_plan_takes_all_partitions_in_order_and_within_bounds(
    lanes: tuple[PartitionInput, ...], now: float, record_bytes: float, flush_now: bool
) -> None:
    planned = plan(lanes, terms(now, record_bytes, "record", flush_now), "b")
    unread = {item.partition: item for item in lanes if item.unread}
    if isinstance(planned, Wait):
        assert not unread or (planned.until is not None and planned.until > now and not flush_now)
        return
    assert {piece.partition for piece in planned.slices} == set(unread)
    for piece in planned.slices:
        source = unread[piece.partition]
        assert piece.start == source.position < piece.end <= source.bounds.end
        assert piece.read_from == max(source.position, source.bounds.first)
    read = sum(piece.end - piece.read_from for piece in planned.slices)
    assert read <= max(records_per_batch_max(FLUSH, record_bytes), len(planned.slices))


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_following_the_plans_reaches_the_end_without_hole_or_overlap(position: int, unread: int) -> None:
    end = position + unread
    read: list[Slice] = []
    while True:
        planned = plan((lane(0, position, 0, end),), terms(record_bytes=100.0, flush_now=True), "b")
        if isinstance(planned, Wait):
            break
        assert planned.slices[0].start == position
        read.append(planned.slices[0])
        position = planned.slices[0].end
    assert position == end and sum(item.offsets for item in read) == unread
