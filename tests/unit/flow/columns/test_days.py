"""A row is filed under the UTC day of its event time, and a clock that cannot be right opens no day."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.columns.days import DayBounds, event_times, split_by_day
from penstock.flow.rows import DecodedRows
from penstock.job.spec import DaysSpec
from penstock.job.sql_text import parse_expression as parse
from tests.unit.flow.route.fanouts import NOW_MS, kafka_part

MICROS = pa.timestamp("us", "UTC")
NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)


def times_of(values: list[Any], kind: pa.DataType, expression: str = "at") -> tuple[list[Any], dict[int, str]]:
    columns = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["at"])
    faults: dict[int, str] = {}
    times = event_times(parse(expression), DecodedRows(columns, kafka_part([b"{}"] * len(values))), faults)
    assert times.type == MICROS
    return times.to_pylist(), faults


@pytest.mark.parametrize(
    ("kind", "value", "expression"),
    [
        (pa.string(), "2026-01-07T12:00:00Z", "at"),
        (pa.string(), "2026-01-07T13:00:00+01:00", "at"),
        (MICROS, NOON, "at"),
        (pa.timestamp("ms"), NOON.replace(tzinfo=None), "at"),
        (pa.int64(), NOW_MS, "timestamp_millis(at)"),
        (pa.string(), None, "kafka.timestamp"),
    ],
)
def test_every_notation_of_a_time_gives_the_same_instant(kind: pa.DataType, value: Any, expression: str) -> None:
    assert times_of([value], kind, expression) == ([NOON], {})


def test_a_date_is_its_midnight() -> None:
    assert times_of([date(2026, 1, 7)], pa.date32()) == ([datetime(2026, 1, 7, tzinfo=UTC)], {})


def test_a_row_without_a_time_is_reported_and_its_neighbours_keep_theirs() -> None:
    times, faults = times_of(["2026-01-07T12:00:00Z", None, "soon", "2026-13-01T00:00:00Z"], pa.string())
    assert times == [NOON, None, None, None]
    assert faults == {
        1: "has no event time",
        2: 'event time "soon" is not a time',
        3: 'event time "2026-13-01T00:00:00Z" is not a time',
    }


@pytest.mark.parametrize(
    ("kind", "expression", "why"),
    [
        (pa.string(), "then", "the schema has no field then"),
        (pa.string(), "at.then", "the schema has no field at.then"),
        (pa.bool_(), "at", "at is not a time: it is of type boolean"),
        (pa.int64(), "at", "at is not a time: it is of type long; write timestamp_millis(at), or _seconds or _micros"),
        (pa.string(), "timestamp_millis(at)", "timestamp_millis takes whole numbers, not string"),
    ],
)
def test_rows_without_a_time_have_a_reason(kind: pa.DataType, expression: str, why: str) -> None:
    times, faults = times_of([None, None], kind, expression)
    assert times == [None, None]
    assert [fault.startswith("has no event time: ") and fault.endswith(why) for fault in faults.values()] == [True] * 2


def outside(times: list[datetime | None], **days: Any) -> dict[int, str]:
    written = pa.array([NOON] * len(times), MICROS)
    return DayBounds(DaysSpec(**days), NOW_MS).outside(pa.array(times, MICROS), written)


def test_both_bounds_of_time_are_inclusive() -> None:
    first, last = datetime(2000, 1, 1, tzinfo=UTC), datetime(2026, 1, 8, 12, tzinfo=UTC)
    before, after = datetime(1999, 12, 31, 23, 59, 59, 999999, UTC), last.replace(microsecond=1)
    assert outside([first, before, None, after, last]) == {
        1: "event time 1999-12-31T23:59:59.999999Z is before 2000-01-01",
        3: "event time 2026-01-08T12:00:00.000001Z is more than 86400 s ahead of the clock",
    }


def test_lateness_is_measured_against_the_kafka_time_of_each_record() -> None:
    in_time, late = datetime(2026, 1, 7, 11, tzinfo=UTC), datetime(2026, 1, 7, 10, 59, 59, tzinfo=UTC)
    assert outside([in_time, late]) == {}
    assert outside([in_time, late], late_seconds_max=3600.0) == {
        1: "event time 2026-01-07T10:59:59Z is more than 3600 s before its Kafka time"
    }
    unknown = pa.array([None], MICROS)
    assert DayBounds(DaysSpec(late_seconds_max=1.0), NOW_MS).outside(pa.array([late], MICROS), unknown) == {}


@given(
    st.lists(st.integers(-2 * 86_400, 3 * 86_400).map(lambda second: datetime.fromtimestamp(second, UTC)), max_size=40)
)
def test_rows_keep_their_order_inside_the_day_that_the_calendar_gives_them(instants: list[datetime]) -> None:
    numbers = pa.array(range(len(instants)), pa.int64())
    rows = pa.RecordBatch.from_arrays([numbers], names=["n"])
    times = pa.array(instants, MICROS)
    result = {}
    for item in split_by_day(rows, times, numbers):
        result[item.day] = item.rows.column("n").to_pylist()
        assert item.offsets.tolist() == result[item.day]
    expected: dict[str, list[int]] = {}
    for number, instant in enumerate(instants):
        expected.setdefault(instant.date().isoformat(), []).append(number)
    assert result == expected


def test_a_rare_day_does_not_keep_the_memory_of_the_others() -> None:
    def rare() -> pa.RecordBatch:
        count = 100_000
        rows = pa.RecordBatch.from_arrays([pa.array(["x" * 20] * count)], names=["s"])
        times = pa.array([NOON] * (count - 1) + [NOON.replace(day=6)], MICROS)
        return next(iter(split_by_day(rows, times, pa.array(range(count), pa.int64())))).rows

    before = pa.total_allocated_bytes()
    kept = rare()
    assert kept.num_rows == 1
    assert pa.total_allocated_bytes() - before < 10_000
