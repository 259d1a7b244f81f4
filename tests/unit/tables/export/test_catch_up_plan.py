"""Plans of catch-ups: which offsets lagging types read again, gaps, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.logs.log import Bounds, Partition, Slice
from penstock.tables.export.catch_up import is_rotation_due, next_catch_up
from penstock.tables.export.spec import Rotation
from penstock.tables.export.state import ExportState, JobPartition, Lag, caught_up

EVENTS = Partition("events", "topic-A", 0)
WHOLE = Bounds(0, 1_000)


def waiting(position: int, deferred: int = 1, **more: int) -> Lag:
    return Lag(position, deferred, **more)


def at(position: int, **lags: Lag) -> JobPartition:
    return JobPartition(position, 0, 1, lags=lags)


def planned(
    partition: JobPartition, bounds: Bounds = WHOLE, records_max: int = 1_000_000, paused: str = ""
) -> tuple[int, int, int, Mapping[str, int]] | None:
    """Start, first offset read and end of the slice, with the types that take part."""
    state = ExportState(1, {(EVENTS.topic_id, EVENTS.number): partition})
    plan = next_catch_up(state, {EVENTS: bounds}, lambda name, _: name not in paused, records_max)
    if plan is None:
        return None
    [piece] = plan.slices
    return piece.start, piece.read_from, piece.end, plan.takes[EVENTS]


def test_types_that_lag_are_read_together_each_from_its_own_position() -> None:
    assert planned(at(20, A=waiting(4), B=waiting(9))) == (4, 4, 20, {"A": 4, "B": 9})
    assert planned(at(20)) is None


def test_a_type_beyond_the_end_of_a_bounded_slice_takes_no_part() -> None:
    assert planned(at(20, A=waiting(4), B=waiting(9)), records_max=3) == (4, 4, 7, {"A": 4})


def test_a_type_that_failed_lately_is_not_tried_yet() -> None:
    partition = at(20, A=waiting(4), B=waiting(9))
    assert planned(partition, paused="A") == (9, 9, 20, {"B": 9})
    assert planned(partition, paused="AB") is None


# gaps


def test_a_gap_is_counted_once_regardless_of_the_number_of_slices() -> None:
    """B lacks 1, 3, 5 and 7; the log begins at 4 now, and a slice takes two offsets."""
    partition = at(8, B=waiting(1, deferred=4))
    vanished = 0
    for expected, count in (((1, 4, 6, {"B": 1}), 1), ((6, 6, 8, {"B": 6}), 1)):
        assert planned(partition, Bounds(4, 8), records_max=2) == expected
        start, read_from, end, _ = expected
        lags, more = caught_up(partition, Slice(EVENTS, start, end, read_from), {"B": count})
        partition = replace(partition, lags={name: lag for name, lag in lags.items() if lag.deferred})
        vanished += more.vanished
    assert (partition.lags, vanished) == ({}, 2)


# time


def test_a_rotation_by_count_alone_is_due_after_half_an_hour_too() -> None:
    lag = waiting(1, since_ms=1_000)
    assert not is_rotation_due(Rotation(events=100), lag, now=1.0 + 1_799.0)
    assert is_rotation_due(Rotation(events=100), lag, now=1.0 + 1_800.0)


def test_a_rotation_is_due_once_enough_records_wait() -> None:
    assert not is_rotation_due(Rotation(events=100), waiting(1, deferred=99), now=1.0)
    assert is_rotation_due(Rotation(events=100), waiting(1, deferred=100), now=1.0)
    assert is_rotation_due(None, waiting(1), now=1.0), "a type without a rotation waits only while it fails"
